// Tables that are sorted by a click on a heading, and the filters of the ledger. Works from a folder, without a server.
"use strict";

// browsers refuse scripts to read the pages of a folder, so a search there lists titles only
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

const keyOf = (row, column) => row.cells[column].dataset.key ?? row.cells[column].textContent.trim();

function compared(one, other) {
  const numbers = [Number(one), Number(other)];
  if (one !== "" && other !== "" && !numbers.some(Number.isNaN)) return numbers[0] - numbers[1];
  return one.localeCompare(other, "en", { numeric: true });
}

function sortBy(table, column) {
  const heading = table.tHead.rows[0].cells[column];
  const order = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => sign * compared(keyOf(a, column), keyOf(b, column)));
  table.tBodies[0].append(...rows);
}

function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sortBy(table, column));
    heading.append(button);
  });
}

function filter(form) {
  const wanted = Object.fromEntries(new FormData(form));
  const rows = [...document.getElementById(form.dataset.for).tBodies[0].rows];
  for (const row of rows) {
    row.hidden = !(
      (!wanted.paper || row.dataset.paper === wanted.paper) &&
      (!wanted.verdict || row.dataset.verdict === wanted.verdict) &&
      (!wanted.data || row.dataset.data.split("|").includes(wanted.data)) &&
      (!wanted.text || row.textContent.toLowerCase().includes(wanted.text.toLowerCase()))
    );
  }
  form.querySelector("output").value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} claims`;
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("table.sortable").forEach(makeSortable);
  document.querySelectorAll("form.filters").forEach((form) => {
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => filter(form));
    filter(form); // a browser that goes back has kept the choice
  });
});
