"use strict";
// Tables are sorted by a click (or Enter) on a header; a second one turns the order round. Empty cells stay last.
function sortBy(header) {
  const table = header.closest("table"), body = table.tBodies[0];
  const column = header.cellIndex, up = header.getAttribute("aria-sort") !== "ascending";
  const keyed = Array.from(body.rows, (row) => ({ row, key: row.cells[column].dataset.key }));
  const known = keyed.filter(({ key }) => key !== "" && key !== "-");
  const numeric = known.length > 0 && known.every(({ key }) => Number.isFinite(Number(key)));
  const words = new Intl.Collator("en", { numeric: true });
  known.sort((a, b) => (up ? 1 : -1) * (numeric ? a.key - b.key : words.compare(a.key, b.key)));
  const rest = keyed.filter(({ key }) => key === "" || key === "-");
  body.append(...known.concat(rest).map(({ row }) => row));
  for (const other of header.parentNode.cells) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
}
for (const header of document.querySelectorAll("table.sortable thead th")) {
  header.querySelector("button").addEventListener("click", () => sortBy(header));
}
