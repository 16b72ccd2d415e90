// Brings the page to life: charts and graph from the block of data, sorting, the theme.
"use strict";
(function () {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const redraws = [];
  for (const holder of document.querySelectorAll("[data-chart]")) {
    const output = data.outputs[Number(holder.dataset.output)];
    const choices = document.querySelector(`[data-choices="${holder.dataset.output}"]`);
    const kinds = { scatter: () => scatter(holder, choices, output), histogram: () => histogram(holder, output), deciles: () => deciles(holder, output) };
    redraws.push(kinds[holder.dataset.chart]());
  }
  for (const table of document.querySelectorAll("table[data-sortable]")) sortable(table);
  const showGraph = data.graph ? graph(document.querySelector("[data-graph]"), data.graph) : () => {};
  likewiseTheme.connect(document.getElementById("theme"), () => redraws.forEach((redraw) => redraw()));
  // Paper is white, and shows what is folded away.
  const theme = document.documentElement.dataset;
  let before;
  addEventListener("beforeprint", () => {
    before = theme.theme;
    theme.theme = "light";
    redraws.forEach((redraw) => redraw());
    showGraph();
    for (const folded of document.querySelectorAll("details:not([open])")) {
      folded.open = true;
      folded.dataset.printed = "";
    }
  });
  addEventListener("afterprint", () => {
    if (before) theme.theme = before;
    else delete theme.theme;
    redraws.forEach((redraw) => redraw());
    for (const opened of document.querySelectorAll("details[data-printed]")) {
      opened.open = false;
      delete opened.dataset.printed;
    }
  });
  document.documentElement.dataset.ready = "";
})();
