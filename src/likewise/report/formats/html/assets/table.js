// Tables that sort by a heading: once ascending, again descending, a third time as they came.
"use strict";
const sortable = (table) => {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const headings = [...table.tHead.rows[0].cells];

  const key = (row, place) => {
    const cell = row.cells[place];
    const text = cell.dataset.order ?? cell.textContent;
    const value = text === "" ? NaN : Number(text === "inf" ? "Infinity" : text === "-inf" ? "-Infinity" : text);
    return Number.isNaN(value) ? text.toLowerCase() : value;
  };
  const compare = (one, other) => {
    if (typeof one === typeof other) return one < other ? -1 : one > other ? 1 : 0;
    return typeof one === "number" ? -1 : 1; // numbers before words
  };

  headings.forEach((heading, place) => {
    const button = make("button", "sort");
    button.type = "button";
    button.append(...heading.childNodes, make("span", "arrow"));
    heading.append(button);
    button.addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      const now = before === "ascending" ? "descending" : before === "descending" ? null : "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      if (now) heading.setAttribute("aria-sort", now);
      const sign = now === "descending" ? -1 : 1;
      const rows = now === null
        ? original
        : original
          .map((row) => [key(row, place), row])
          .sort((one, other) => sign * compare(one[0], other[0]))
          .map(([, row]) => row);
      body.replaceChildren(...rows);
    });
  });
};
