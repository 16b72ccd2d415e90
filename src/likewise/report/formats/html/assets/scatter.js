// The candidate's answers against the reference's, with the band that the tolerance allows.
"use strict";
const scatter = (holder, choices, output) => {
  const [absolute, relative] = output.tolerance;
  const allowed = (r) => absolute + relative * Math.abs(r);
  const points = output.points
    .map((point) => ({ ...point, d: point.c - point.r, beyond: !(Math.abs(point.c - point.r) <= allowed(point.r)) }))
    .sort((one, other) => one.r - other.r || one.c - other.c);
  const tell = teller(holder);
  let view = "candidate";
  let current = -1;
  let plot = null;

  const height = (point) => (view === "candidate" ? point.c : point.d);
  const middle = (r) => (view === "candidate" ? r : 0);

  const spread = (values, least) => {
    let [low, high] = [Math.min(...values), Math.max(...values)];
    const more = Math.max((high - low) * 0.06, least);
    return [low - more, high + more];
  };

  const ranges = () => {
    if (!points.length) return { x: [0, 1], y: [0, 1] };
    const x = spread(points.map((p) => p.r), Math.abs(points[0].r) * 1e-6 || 1e-6);
    if (view === "candidate") return { x, y: spread([...points.map((p) => p.c), ...x], 0) };
    const largest = Math.max(...points.map((p) => Math.abs(p.d)));
    const band = Math.max(allowed(x[0]), allowed(x[1]));
    // The band is in the picture unless the differences would vanish beside it.
    const most = (band <= 20 * largest || largest === 0 ? Math.max(band, largest) : largest) * 1.15 || 1e-12;
    return { x, y: [-most, most] };
  };

  const band = (u) => {
    const { ctx, bbox } = u;
    const [from, to] = [u.scales.x.min, u.scales.x.max];
    const steps = 64;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.beginPath();
    for (let side = 0; side < 2; side++)
      for (let step = 0; step <= steps; step++) {
        const r = from + ((to - from) * (side ? steps - step : step)) / steps;
        const y = middle(r) + (side ? -allowed(r) : allowed(r));
        ctx.lineTo(u.valToPos(r, "x", true), u.valToPos(y, "y", true));
      }
    ctx.closePath();
    ctx.fillStyle = colour("band");
    ctx.fill();
    ctx.strokeStyle = colour("band-edge");
    ctx.lineWidth = devicePixelRatio;
    ctx.stroke();
    ctx.beginPath();
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.moveTo(u.valToPos(from, "x", true), u.valToPos(middle(from), "y", true));
    ctx.lineTo(u.valToPos(to, "x", true), u.valToPos(middle(to), "y", true));
    ctx.strokeStyle = colour("muted");
    ctx.stroke();
    ctx.restore();
  };

  const dots = (u) => {
    const { ctx, bbox } = u;
    const unit = devicePixelRatio;
    const looks = { dot: colour("accent"), cross: colour("bad"), ring: colour("text") };
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left - 4 * unit, bbox.top - 4 * unit, bbox.width + 8 * unit, bbox.height + 8 * unit);
    ctx.clip();
    points.forEach((point, place) => {
      const x = u.valToPos(point.r, "x", true);
      const y = u.valToPos(height(point), "y", true);
      ctx.beginPath();
      if (point.beyond) {
        const arm = 3.5 * unit;
        ctx.moveTo(x - arm, y - arm);
        ctx.lineTo(x + arm, y + arm);
        ctx.moveTo(x - arm, y + arm);
        ctx.lineTo(x + arm, y - arm);
        ctx.strokeStyle = looks.cross;
        ctx.lineWidth = 1.8 * unit;
        ctx.stroke();
      } else {
        ctx.arc(x, y, 2.4 * unit, 0, 2 * Math.PI);
        ctx.globalAlpha = 0.6;
        ctx.fillStyle = looks.dot;
        ctx.fill();
        ctx.globalAlpha = 1;
      }
      if (point.worst || place === current) {
        ctx.beginPath();
        ctx.arc(x, y, (place === current ? 9 : 6.5) * unit, 0, 2 * Math.PI);
        ctx.strokeStyle = looks.ring;
        ctx.lineWidth = (place === current ? 2.2 : 1.1) * unit;
        ctx.stroke();
      }
    });
    ctx.restore();
  };

  const show = (place) => {
    if (place === current) return;
    current = place;
    if (plot) plot.redraw(false);
    if (place < 0) return tell.hide();
    const point = points[place];
    const lines = [
      ["row", point.row + (point.at ? `, ${point.at}` : "")],
      ["reference", figure(point.r, 9)],
      ["candidate", figure(point.c, 9)],
      ["difference", `${figure(point.d)}${point.beyond ? ", beyond tolerance" : ""}`],
      ...(point.inputs || []),
    ];
    if (point.more) lines.push(["and", `${point.more} more inputs`]);
    const over = plot.over.getBoundingClientRect();
    const room = holder.getBoundingClientRect();
    tell.show(
      lines,
      over.left - room.left + plot.valToPos(point.r, "x"),
      over.top - room.top + plot.valToPos(height(point), "y"),
    );
  };

  const nearest = (left, top) => {
    let [best, least] = [-1, 24 * 24];
    points.forEach((point, place) => {
      const apart = (plot.valToPos(point.r, "x") - left) ** 2 + (plot.valToPos(height(point), "y") - top) ** 2;
      // Where points lie on each other the worst rows are the ones to see.
      if (apart < least || (apart === least && point.worst)) [best, least] = [place, apart];
    });
    return best;
  };

  const build = (width, tall) => {
    const { x, y } = ranges();
    current = -1;
    tell.hide();
    plot = new uPlot({
      width,
      height: tall,
      legend: { show: false },
      cursor: { drag: { x: false, y: false, setScale: false }, points: { show: false } },
      scales: { x: { time: false, range: x }, y: { range: y } },
      axes: [
        axisLook("reference", { size: 40, space: 70 }),
        axisLook(view === "candidate" ? "candidate" : "candidate − reference", { size: 64 }),
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: {
        drawAxes: [band],
        draw: [dots],
        setCursor: [(u) => { if (u.cursor.left >= 0) show(nearest(u.cursor.left, u.cursor.top)); }],
      },
    }, [points.map((p) => p.r), points.map(height)], holder);
    plot.over.addEventListener("mouseleave", () => show(-1));
    return plot;
  };

  const redraw = sized(holder, 460, build);

  steered(holder, points.length, () => current, show);

  ["candidate", "difference"].forEach((name) => {
    const button = make("button", "", name === "candidate" ? "Answers" : "Differences");
    button.type = "button";
    button.setAttribute("aria-pressed", String(name === view));
    button.addEventListener("click", () => {
      view = name;
      for (const other of choices.children) other.setAttribute("aria-pressed", String(other === button));
      redraw();
    });
    choices.append(button);
  });
  choices.hidden = false;
  return redraw;
};
