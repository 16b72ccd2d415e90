// What every part uses: elements that hold text and never markup, figures, colours of the theme.
"use strict";
const make = (tag, className, text) => {
  const found = document.createElement(tag);
  if (className) found.className = className;
  if (text !== undefined) found.textContent = text;
  return found;
};

const SVG = "http://www.w3.org/2000/svg";
const draw = (tag, attributes, text) => {
  const found = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) found.setAttribute(name, value);
  if (text !== undefined) found.textContent = text;
  return found;
};

const figure = (value, digits = 4) => {
  if (value === null || value === undefined) return "not measured";
  if (value === 0) return "0";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US");
  const short = Number(value.toPrecision(digits));
  const small = Math.abs(short) < 1e-3 || Math.abs(short) >= 1e6;
  return small ? short.toExponential().replace("e+", "e") : String(short);
};

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// The arrow keys go through the entries of a chart; -1 shows none.
const steered = (holder, count, current, show) => {
  holder.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (event.key === "Escape") show(-1);
    if (!step || !count) return;
    event.preventDefault();
    show(Math.max(0, Math.min(count - 1, current() < 0 ? 0 : current() + step)));
  });
  holder.addEventListener("blur", () => show(-1));
};

// A box beside a chart that says what is pointed at; screen readers are told too.
const teller = (holder) => {
  const box = make("div", "tell");
  box.setAttribute("role", "status");
  box.hidden = true;
  holder.append(box);
  return {
    hide() { box.hidden = true; },
    show(lines, left, top) {
      box.replaceChildren(...lines.map(([name, value]) => {
        const line = make("div");
        line.append(make("span", "name", name), " ", make("span", "value", value));
        return line;
      }));
      box.hidden = false;
      const room = holder.getBoundingClientRect();
      const at = left + 14 + box.offsetWidth <= room.width ? left + 14 : Math.max(0, left - 14 - box.offsetWidth);
      box.style.left = `${Math.max(0, Math.min(at, room.width - box.offsetWidth))}px`;
      box.style.top = `${Math.max(0, Math.min(top - 10, room.height - box.offsetHeight))}px`;
    },
  };
};

// Charts are as wide as the page lets them be, and drawn again when that or the theme changes.
const sized = (holder, height, build) => {
  let plot = null;
  const redraw = () => {
    if (plot) plot.destroy();
    const width = Math.max(200, Math.floor(holder.clientWidth));
    plot = build(width, Math.min(height, Math.max(220, Math.round(width * 0.7))));
  };
  let before = holder.clientWidth;
  new ResizeObserver(() => {
    if (holder.clientWidth === before) return;
    before = holder.clientWidth;
    redraw();
  }).observe(holder);
  redraw();
  return redraw;
};

const axisLook = (label, extra) => ({
  label,
  labelFont: "12px system-ui, sans-serif",
  font: "11px system-ui, sans-serif",
  labelSize: 20,
  stroke: colour("muted"),
  grid: { stroke: colour("line"), width: 1 },
  ticks: { stroke: colour("line"), width: 1 },
  values: (_, values) => values.map((value) => figure(value, 4)),
  ...extra,
});
