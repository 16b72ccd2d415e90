// The graph around the culprit: the candidate beside the reference, coloured by the error each node introduces.
"use strict";
const graph = (holder, data) => {
  const WIDTH = 190;
  const HEIGHT = 58;
  const sides = ["candidate", "reference"].filter((side) => data.nodes.some((node) => node.side === side));
  for (const node of data.nodes) if (!sides.includes(node.side)) sides.push(node.side);
  const known = data.nodes.map((node) => node.introduced).filter((value) => value !== null && value > data.noise);
  const [least, most] = [Math.min(...known), Math.max(...known)];
  // Five shades from the smallest to the largest error on a logarithmic scale; what is no more than rounding has none.
  const shade = (value) => {
    if (value === null) return "unmeasured";
    if (value <= data.noise) return "heat-0";
    if (most === least) return "heat-5";
    return `heat-${1 + Math.round((4 * Math.log(value / least)) / Math.log(most / least))}`;
  };
  const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

  const bar = make("div", "tools");
  const view = draw("svg", {
    class: "canvas", role: "group", tabindex: "0",
    "aria-label": "Graph of the nodes. Plus and minus zoom, arrow keys move, 0 shows all of it. The table below says the same.",
  });
  const scene = draw("g", { class: "scene" });
  const stage = make("div", "stage");
  stage.append(view);
  holder.append(bar, stage);
  const tell = teller(stage);

  const defs = draw("defs");
  const arrow = draw("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" });
  arrow.append(draw("path", { d: "M0 0L8 4L0 8z", class: "arrowhead" }));
  defs.append(arrow);
  view.append(defs, scene);

  // What to begin with: the culprit, or whatever introduces the largest error.
  const middle = { x: 0, y: 0, weight: -2 };
  let left = 0;
  let deepest = 0;
  for (const side of sides) {
    const plan = new dagre.graphlib.Graph({ multigraph: true });
    plan.setGraph({ rankdir: "TB", nodesep: 26, ranksep: 44, marginx: 20, marginy: 44 });
    plan.setDefaultEdgeLabel(() => ({}));
    const own = new Map(data.nodes.filter((node) => node.side === side).map((node) => [node.id, node]));
    for (const id of own.keys()) plan.setNode(id, { width: WIDTH, height: HEIGHT });
    data.edges.forEach((edge, place) => {
      if (own.has(edge.source) && own.has(edge.target)) plan.setEdge(edge.source, edge.target, { tensor: edge.tensor }, String(place));
    });
    dagre.layout(plan);
    const { width, height } = plan.graph();
    const group = draw("g", { transform: `translate(${left} 0)` });
    group.append(draw("text", { class: "side", x: width / 2, y: 20, "text-anchor": "middle" }, side));
    for (const edge of plan.edges()) {
      const { points, tensor } = plan.edge(edge);
      const path = draw("path", { class: "edge", d: `M${points.map((p) => `${p.x} ${p.y}`).join("L")}`, "marker-end": "url(#arrow)" });
      path.append(draw("title", {}, tensor));
      group.append(path);
    }
    for (const [id, node] of own) {
      const { x, y } = plan.node(id);
      const weight = node.culprit ? Infinity : node.introduced ?? -1;
      if (weight > middle.weight) Object.assign(middle, { x: left + x, y, weight });
      const mark = draw("g", {
        class: `node ${shade(node.introduced)}${node.culprit ? " culprit" : ""}`,
        transform: `translate(${x - WIDTH / 2} ${y - HEIGHT / 2})`,
        tabindex: "0", role: "img", "aria-label": node.told,
      });
      if (node.culprit) mark.append(draw("rect", { class: "outline", x: -5, y: -5, width: WIDTH + 10, height: HEIGHT + 10, rx: 4 }));
      mark.append(
        draw("rect", { class: "box", width: WIDTH, height: HEIGHT, rx: node.culprit ? 2 : 10 }),
        draw("text", { class: "operator", x: 10, y: 18 }, cut((node.culprit ? "✗ culprit: " : "") + node.operator, 26)),
        draw("text", { class: "name", x: 10, y: 34 }, cut(node.name, 28)),
        draw("text", { class: "error", x: 10, y: 50 }, node.introduced === null ? "error not measured" : `introduces ${figure(node.introduced, 3)}`),
      );
      const say = () => {
        const [box, room] = [mark.getBoundingClientRect(), stage.getBoundingClientRect()];
        tell.show([[node.operator, node.name], ["", node.told]], box.right - room.left - 10, box.top - room.top);
      };
      mark.addEventListener("pointerenter", say);
      mark.addEventListener("pointerleave", tell.hide);
      mark.addEventListener("focus", say);
      mark.addEventListener("blur", tell.hide);
      group.append(mark);
    }
    scene.append(group);
    left += width + 30;
    deepest = Math.max(deepest, height);
  }
  const whole = { x: 0, y: 0, w: Math.max(left - 30, 240), h: Math.max(deepest, 160) };
  const box = { ...whole };

  const shape = () => view.getBoundingClientRect();
  const apply = () => view.setAttribute("viewBox", `${box.x} ${box.y} ${box.w} ${box.h}`);
  const all = () => {
    const { width, height } = shape();
    const scale = Math.max(whole.w / (width || 1), whole.h / (height || 1), 0.8);
    Object.assign(box, { w: (width || whole.w) * scale, h: (height || whole.h) * scale });
    Object.assign(box, { x: (whole.w - box.w) / 2, y: (whole.h - box.h) / 2 });
    apply();
  };
  const begin = () => {
    all();
    // Readable first: of a graph too large for the picture a part is shown, the rest is a drag away.
    const { width } = shape();
    const readable = 1.15 * (width || whole.w);
    if (box.w <= readable) return;
    zoom(readable / box.w, middle.x, middle.y);
    const within = (value, room) => (room > 0 ? Math.max(0, Math.min(value, room)) : room / 2);
    box.x = within(middle.x - box.w / 2, whole.w - box.w);
    box.y = within(middle.y - box.h / 2, whole.h - box.h);
    apply();
  };
  const zoom = (factor, x = box.x + box.w / 2, y = box.y + box.h / 2) => {
    const next = box.w * factor;
    if (next < 80 || next > whole.w * 8) return;
    Object.assign(box, { x: x - (x - box.x) * factor, y: y - (y - box.y) * factor, w: next, h: box.h * factor });
    apply();
  };
  const move = (x, y) => { box.x += x; box.y += y; apply(); };

  view.addEventListener("wheel", (event) => {
    event.preventDefault();
    const room = shape();
    const [x, y] = [box.x + ((event.clientX - room.left) / room.width) * box.w, box.y + ((event.clientY - room.top) / room.height) * box.h];
    zoom(event.deltaY > 0 ? 1.15 : 1 / 1.15, x, y);
  }, { passive: false });
  let held = null;
  view.addEventListener("pointerdown", (event) => { held = [event.clientX, event.clientY]; view.setPointerCapture(event.pointerId); });
  view.addEventListener("pointermove", (event) => {
    if (!held) return;
    const scale = box.w / shape().width;
    move((held[0] - event.clientX) * scale, (held[1] - event.clientY) * scale);
    held = [event.clientX, event.clientY];
  });
  for (const name of ["pointerup", "pointercancel"]) view.addEventListener(name, () => { held = null; });

  const actions = {
    "+": () => zoom(1 / 1.25), "=": () => zoom(1 / 1.25), "-": () => zoom(1.25), "0": all,
    ArrowLeft: () => move(-box.w * 0.1, 0), ArrowRight: () => move(box.w * 0.1, 0),
    ArrowUp: () => move(0, -box.h * 0.1), ArrowDown: () => move(0, box.h * 0.1),
  };
  view.addEventListener("keydown", (event) => {
    const act = actions[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  for (const [label, key, name] of [["+", "+", "Zoom in"], ["−", "-", "Zoom out"], ["Show all", "0", "Show all of the graph"]]) {
    const button = make("button", "", label);
    button.type = "button";
    button.setAttribute("aria-label", name);
    button.addEventListener("click", actions[key]);
    bar.append(button);
  }
  const legend = make("ul", "legend");
  const entry = (className, text) => {
    const item = make("li");
    const key = draw("svg", { class: "swatch", viewBox: "0 0 14 14", "aria-hidden": "true" });
    const node = draw("g", { class: `node ${className}` });
    if (className === "culprit") node.append(draw("rect", { class: "outline", x: 1, y: 1, width: 12, height: 12 }));
    node.append(draw("rect", { class: "box", x: 3, y: 3, width: 8, height: 8 }));
    key.append(node);
    item.append(key, make("span", "", text));
    legend.append(item);
  };
  entry("heat-0", data.neutral);
  if (known.length) {
    if (most !== least) entry("heat-1", `introduces ${figure(least, 2)}`);
    entry("heat-5", `introduces ${figure(most, 2)}`);
  }
  if (data.nodes.some((node) => node.introduced === null)) entry("unmeasured", "not measured");
  if (data.nodes.some((node) => node.culprit)) entry("culprit", "culprit");
  bar.append(legend);
  holder.hidden = false;
  begin();
  return all;
};
