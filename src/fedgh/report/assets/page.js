(() => {
  "use strict";
  const main = document.getElementById("main");
  const status = document.getElementById("status");
  const themes = JSON.parse(document.getElementById("themes").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let charts = JSON.parse(document.getElementById("charts").textContent);
  let views = [];

  // Expressions are interpreted (ast), because the page's policy forbids making code from text.
  async function draw() {
    delete document.body.dataset.drawn;
    views.forEach((view) => view.finalize());
    views = [];
    const shade = dark.matches ? "dark" : "light";
    for (const element of main.querySelectorAll("[data-chart]")) {
      const options = { config: themes[shade], renderer: "svg", actions: false, ast: true, tooltip: { theme: shade } };
      views.push(await vegaEmbed(element, charts[element.dataset.chart], options));
    }
    document.body.dataset.drawn = shade;
  }

  // Drawings run one after the other; at most one is waiting, and it draws the latest charts.
  let drawing = Promise.resolve();
  let waiting = false;
  function redraw() {
    if (waiting) return;
    waiting = true;
    drawing = drawing.then(() => { waiting = false; return draw(); }).catch((problem) => console.error(problem));
  }

  function compare(one, other) {
    const numbers = [Number(one), Number(other)];
    return numbers.some(Number.isNaN) ? one.localeCompare(other) : numbers[0] - numbers[1];
  }

  function sort(header, direction) {
    const column = [...header.parentNode.children].indexOf(header);
    const body = header.closest("table").tBodies[0];
    for (const other of header.parentNode.children) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", direction);
    const sign = direction === "ascending" ? 1 : -1;
    const rows = [...body.rows].map((row) => ({ row, key: row.cells[column].dataset.value }));
    rows.sort((a, b) => {
      if (a.key === undefined || b.key === undefined) return (a.key === undefined) - (b.key === undefined);
      return sign * compare(a.key, b.key);
    });
    body.append(...rows.map((item) => item.row));
  }

  main.addEventListener("click", (event) => {
    const header = event.target.closest("th");
    if (!header || !event.target.closest("button")) return;
    sort(header, header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending");
  });

  // A live page keeps the reader's state: unfolded texts, sorted tables, the scroll position.
  function replace(content) {
    const open = [...main.querySelectorAll("details")].map((item) => item.open);
    const sorted = [...main.querySelectorAll("th")].map((item) => item.getAttribute("aria-sort"));
    const old = new Map([...main.querySelectorAll("[data-chart]")].map((item) => [item.dataset.chart, item]));
    const next = document.createElement("template");
    next.innerHTML = content.main;
    for (const element of next.content.querySelectorAll("[data-chart]")) {
      const before = old.get(element.dataset.chart);
      if (before) element.append(...before.childNodes); // until the new chart is drawn
    }
    main.replaceChildren(next.content);
    main.querySelectorAll("details").forEach((item, at) => { item.open = Boolean(open[at]); });
    const headers = [...main.querySelectorAll("th")];
    if (headers.length === sorted.length) {
      headers.forEach((header, at) => { if (sorted[at] !== "none") sort(header, sorted[at]); });
    }
    document.title = content.title;
    charts = content.charts;
    redraw();
  }

  async function follow() {
    let version = null;
    for (;;) {
      try {
        const answer = await fetch("content", { headers: version === null ? {} : { "If-None-Match": version } });
        if (answer.status === 200) {
          const content = await answer.json();
          version = answer.headers.get("ETag");
          status.textContent = content.status;
          replace(content);
        }
      } catch (problem) {
        version = null;
        status.textContent = "No connection to fedgh watch; the page shows the last state received.";
      }
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }

  dark.addEventListener("change", redraw);
  if (document.body.classList.contains("live")) follow();
  else redraw();
})();
