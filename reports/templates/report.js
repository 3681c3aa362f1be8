/* Rows of one node and area, rows with a text, links to rows, and the keyboard. The table itself is
   made by pytest-html, which makes it anew whenever it sorts or filters. */
(function () {
  "use strict";
  /* Rows that do not apply are out of the way until their box is ticked. */
  try {
    var url = new URL(location.href);
    if (!url.searchParams.has("visible")) {
      var boxes = ["failed", "error", "xfailed", "passed", "xpassed", "rerun", "retried"];
      url.searchParams.set("visible", boxes.join(","));
      history.replaceState({}, "", decodeURIComponent(url.href));
    }
  } catch (error) { /* The rows are shown then. */ }

  addEventListener("DOMContentLoaded", function () {
    var matrix = document.getElementById("coverage"), said = document.getElementById("filtered");
    var find = document.getElementById("find"), found = document.getElementById("found");
    var areas = matrix ? JSON.parse(matrix.dataset.areas) : {}, nodes = {}, wanted = null;
    if (matrix) {
      matrix.querySelectorAll("button").forEach(function (cell) { nodes[cell.dataset.node] = true; });
    }
    function bodies() { return document.querySelectorAll("#results-table tbody"); }
    function at(row) {
      var cell = row.querySelector("[data-at]");
      return cell ? JSON.parse(cell.dataset.at) : null;
    }
    function apply() {
      var text = find ? find.value.trim().toLowerCase() : "", count = 0, all = 0;
      bodies().forEach(function (row) {
        var key = at(row), hide = false;
        if (wanted && key) {
          var node = nodes[key[1]] ? key[1] : "whole cluster";
          hide = node !== wanted[0] || Boolean(key[0] && areas[key[0]] !== wanted[1]);
        }
        if (text && !hide) hide = row.textContent.toLowerCase().indexOf(text) < 0;
        row.hidden = hide;
        all += 1;
        count += hide ? 0 : 1;
      });
      if (said) {
        said.hidden = !wanted;
        if (wanted) said.querySelector("b").textContent = wanted[1] + " of " + wanted[0];
      }
      if (found) found.textContent = text ? count + " of " + all + " rows" : "";
    }
    /* What a click does, Enter and the space bar do too. */
    function reachable() {
      document.querySelectorAll("#results-table th.sortable").forEach(function (head) {
        head.tabIndex = 0;
        head.setAttribute("aria-sort", head.classList.contains("asc") ? "ascending" :
                          head.classList.contains("desc") ? "descending" : "none");
      });
      document.querySelectorAll("#results-table .collapsible > .col-result").forEach(function (cell) {
        cell.tabIndex = 0;
        cell.setAttribute("aria-label", cell.textContent + (cell.classList.contains("collapsed") ?
                          ", press Enter for details" : ", press Enter to hide the details"));
      });
    }
    document.addEventListener("keydown", function (event) {
      if (event.key !== "Enter" && event.key !== " ") return;
      var target = event.target;
      if (!target.matches || !target.matches("th.sortable, .collapsible > .col-result")) return;
      event.preventDefault();
      var row = target.closest("tbody"), column = target.dataset.columnType;
      target.click();
      reachable();
      var again = row ? document.querySelector("#" + CSS.escape(row.id) + " .col-result") :
        document.querySelector('th.sortable[data-column-type="' + column + '"]');
      if (again) again.focus();
    });
    document.addEventListener("click", function (event) {
      var link = event.target.closest ? event.target.closest("a[data-row]") : null;
      if (!link) return;
      var key = link.dataset.row;
      wanted = null;
      if (find) find.value = "";
      apply();
      bodies().forEach(function (row) {
        var cell = row.querySelector("[data-at]");
        if (!cell || cell.dataset.at !== key) return;
        event.preventDefault();
        row.scrollIntoView({block: "center"});
        row.querySelector(".col-result").focus({preventScroll: true});
      });
    });
    if (matrix) {
      /* One stop of the tab key for all cells; the arrow keys go from cell to cell. */
      matrix.querySelectorAll("button").forEach(function (cell, k) { cell.tabIndex = k ? -1 : 0; });
      matrix.addEventListener("keydown", function (event) {
        var step = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0],
                    ArrowDown: [1, 0]}[event.key];
        var cell = event.target.closest("td");
        if (!step || !cell) return;
        var line = cell.parentNode.rowIndex, column = cell.cellIndex, next = null;
        do {
          line += step[0];
          column += step[1];
          var row = matrix.rows[line], there = row ? row.cells[column] : null;
          next = there ? there.querySelector("button") : null;
        } while (there && !next);
        if (!next) return;
        event.preventDefault();
        event.target.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      });
      matrix.addEventListener("click", function (event) {
        var cell = event.target.dataset;
        if (!cell.node) return;
        wanted = [cell.node, cell.area];
        apply();
        said.scrollIntoView();
      });
    }
    if (said) {
      said.querySelector("button").addEventListener("click", function () { wanted = null; apply(); });
    }
    if (find) find.addEventListener("input", apply);
    document.querySelectorAll(".filters input").forEach(function (box) {
      box.setAttribute("aria-label", box.nextElementSibling.textContent.replace(/,$/, ""));
    });
    function ready() {
      reachable();
      if (wanted || (find && find.value)) apply();
    }
    new MutationObserver(ready).observe(document.body, {childList: true});
    ready();
  });
})();
