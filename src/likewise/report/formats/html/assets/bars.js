// Bars on a logarithmic axis: differences by size, and by decile of the reference.
"use strict";
const bars = (holder, { entries, x, y, marker, linear }) => {
  // entries: {label, value, lines, beyond, tick}; a value of zero has no bar. With `linear` the axis begins at zero.
  const tell = teller(holder);
  let current = -1;
  let plot = null;
  const logs = entries.map((entry) => (entry.value > 0 ? (linear ? entry.value : Math.log10(entry.value)) : null));
  const known = logs.filter((value) => value !== null);
  const counts = entries.every((entry) => Number.isInteger(entry.value));
  const low = linear ? 0 : counts || !known.length ? -0.3 : Math.floor(Math.min(...known) - 0.5);
  const high = linear ? Math.max(...known) * 1.15 || 1 : Math.max(...known, low + 1) + 0.25;

  const paint = (u) => {
    const { ctx, bbox } = u;
    const unit = devicePixelRatio;
    const base = bbox.top + bbox.height;
    const wide = Math.max(unit, (bbox.width / (entries.length || 1)) * 0.78);
    ctx.save();
    entries.forEach((entry, place) => {
      const middle = u.valToPos(place, "x", true);
      if (logs[place] !== null) {
        const top = u.valToPos(logs[place], "y", true);
        ctx.fillStyle = entry.beyond ? colour("bad") : colour("accent");
        ctx.globalAlpha = place === current ? 1 : 0.78;
        ctx.fillRect(middle - wide / 2, top, wide, base - top);
        ctx.globalAlpha = 1;
        if (entry.beyond) {
          ctx.fillStyle = colour("bad");
          ctx.font = `bold ${13 * unit}px system-ui, sans-serif`;
          ctx.textAlign = "center";
          ctx.fillText("×", middle, top - 3 * unit);
        }
      }
      if (place === current) {
        ctx.strokeStyle = colour("text");
        ctx.lineWidth = 2 * unit;
        const top = logs[place] === null ? base - 4 * unit : u.valToPos(logs[place], "y", true);
        ctx.strokeRect(middle - wide / 2, top, wide, base - top);
      }
    });
    if (marker) {
      const at = u.valToPos(marker.at, "x", true);
      ctx.beginPath();
      ctx.setLineDash([5 * unit, 4 * unit]);
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, base);
      ctx.strokeStyle = colour("text");
      ctx.lineWidth = 1.2 * unit;
      ctx.stroke();
      ctx.fillStyle = colour("text");
      ctx.font = `${11 * unit}px system-ui, sans-serif`;
      const right = at > bbox.left + bbox.width / 2;
      ctx.textAlign = right ? "right" : "left";
      ctx.fillText(marker.text, at + (right ? -5 : 5) * unit, bbox.top + 11 * unit);
    }
    ctx.restore();
  };

  const show = (place) => {
    if (place === current) return;
    current = place;
    if (plot) plot.redraw(false);
    if (place < 0) return tell.hide();
    const over = plot.over.getBoundingClientRect();
    const room = holder.getBoundingClientRect();
    tell.show(entries[place].lines, over.left - room.left + plot.valToPos(place, "x"), over.top - room.top + 20);
  };

  const build = (width, tall) => {
    current = -1;
    tell.hide();
    const named = entries.some((entry) => entry.tick)
      ? entries.map((_, place) => place).filter((place) => entries[place].tick)
      : entries.map((_, place) => place);
    const every = Math.max(1, Math.ceil(named.length / Math.max(2, Math.floor((width - 70) / 58))));
    const ticks = [];
    for (let power = Math.ceil(low); power <= high; power++) ticks.push(power);
    const sparse = Math.max(1, Math.ceil(ticks.length / 6));
    plot = new uPlot({
      width,
      height: tall,
      legend: { show: false },
      cursor: { drag: { x: false, y: false, setScale: false }, points: { show: false }, y: false },
      scales: { x: { time: false, range: [-0.7, entries.length - 0.3] }, y: { range: [low, high] } },
      axes: [
        axisLook(x, {
          size: 40,
          splits: () => named.filter((_, place) => place % every === 0),
          values: (_, places) => places.map((place) => entries[place].label),
          grid: { show: false },
        }),
        axisLook(y, {
          size: 64,
          ...(linear
            ? {}
            : {
              splits: () => ticks.filter((_, place) => place % sparse === 0),
              values: (_, powers) => powers.map((power) => figure(10 ** power, 3)),
            }),
        }),
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: {
        draw: [paint],
        setCursor: [(u) => {
          if (u.cursor.left < 0) return;
          const place = Math.round(u.posToVal(u.cursor.left, "x"));
          show(place >= 0 && place < entries.length ? place : -1);
        }],
      },
    }, [entries.map((_, place) => place), logs], holder);
    plot.over.addEventListener("mouseleave", () => show(-1));
    return plot;
  };

  const redraw = sized(holder, 300, build);
  steered(holder, entries.length, () => current, show);
  return redraw;
};

// Four bars to a power of ten; those that end at one are named.
const sizeOf = (low, high, count) => ({
  label: high === 0 ? "0" : figure(high, 1),
  value: count,
  low,
  high,
  tick: high === 0 || Math.abs(Math.log10(high) - Math.round(Math.log10(high))) < 1e-6,
  lines: [["difference", high === 0 ? "none" : `${figure(low, 3)} to ${figure(high, 3)}`], ["values", figure(count)]],
});

const histogram = (holder, output) => {
  const entries = [];
  const step = 10 ** 0.25;
  for (const [low, high, count] of output.histogram) {
    const last = entries[entries.length - 1];
    // Sizes that do not occur have their place too, unless there would be hundreds of them.
    const gap = last && last.high > 0 ? Math.round(Math.log10(low / last.high) * 4) : 0;
    for (let place = 0; place < Math.min(gap, 60); place++) {
      const from = last.high * step ** place;
      entries.push(sizeOf(from, from * step, 0));
    }
    entries.push(sizeOf(low, high, count));
  }
  const absolute = output.tolerance[0];
  const after = entries.findIndex((entry) => entry.high > 0 && entry.high >= absolute);
  const marker = absolute > 0 && after >= 0 && entries[after].low <= absolute
    ? { at: after - 0.5 + (4 * Math.log10(absolute / entries[after].low) || 0), text: `tolerance ${figure(absolute)}` }
    : null;
  return bars(holder, { entries, x: "absolute difference, up to", y: "values", marker });
};

const largestOf = (groups) => groups.map((group) => group.largest).filter((value) => value > 0);

const deciles = (holder, output) => bars(holder, {
  linear: Math.max(...largestOf(output.deciles)) < 30 * Math.min(...largestOf(output.deciles)),
  entries: output.deciles.map((group, place) => ({
    label: figure(group.to, 2),
    value: group.largest,
    beyond: group.beyond > 0,
    lines: [
      ["reference", `${figure(group.from, 4)} to ${figure(group.to, 4)}`],
      ["largest difference", figure(group.largest)],
      ["values", figure(group.values)],
      ["beyond tolerance", figure(group.beyond)],
    ],
    place,
  })),
  x: "reference, up to",
  y: "largest difference",
});
