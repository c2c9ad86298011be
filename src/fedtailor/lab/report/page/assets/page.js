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

// Okabe and Ito's colours, which colour-blind readers can tell apart, and dashes from the seventh line on. What lines
// are compared with is grey.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const GREY = "#6e7781";
const FEW_POINTS = 12; // so few that each is marked
const dashed = (colour) => colour < 0 || colour >= COLOURS.length;
const inked = (colour) => (colour < 0 ? GREY : COLOURS[colour % COLOURS.length]);
const short = (value) => (value == null ? "–" : String(Number(value.toPrecision(4))));

// A colour of the style sheet, which knows whether the screen is dark.
const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function draw(figure) {
  const chart = JSON.parse(figure.querySelector("script").textContent);
  // Curves have their own x each: a common axis with gaps where a curve has no point.
  const xs = [...new Set(chart.series.flatMap(({ x }) => x))].sort((a, b) => a - b);
  const place = new Map(xs.map((x, i) => [x, i]));
  const columns = chart.series.map(({ x, y }) => {
    const column = new Array(xs.length).fill(null);
    x.forEach((at, i) => { column[place.get(at)] = y[i]; });
    return column;
  });
  const box = document.createElement("div"), keys = document.createElement("div");
  box.className = "plot";
  box.tabIndex = 0;
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", `${chart.title}: ${chart.y} over ${chart.x}; arrow keys read the values`);
  keys.className = "series";
  figure.append(box, keys);
  const size = () => ({ width: Math.max(box.clientWidth, 240), height: 300 });
  const outs = [];
  const banded = (u) => chart.series.filter((line, i) => line.low && u.series[i + 1].show);
  // The axis has room for the bands of what is shown, too.
  const range = (u, low, high) => {
    const ends = banded(u).flatMap((line) => line.low.concat(line.high)).concat(low, high).filter((it) => it != null);
    return ends.length ? uPlot.rangeNum(Math.min(...ends), Math.max(...ends), 0.1, true) : [null, null];
  };
  const drawBands = (u) => {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.globalAlpha = 0.15;
    for (const { x, low, high, colour } of banded(u)) {
      const there = x.map((at, i) => [at, low[i], high[i]]).filter(([, a, b]) => a != null && b != null);
      const across = there.map(([at, a]) => [at, a]).concat(there.map(([at, , b]) => [at, b]).reverse());
      ctx.beginPath();
      for (const [at, value] of across) ctx.lineTo(u.valToPos(at, "x", true), u.valToPos(value, "y", true));
      ctx.fillStyle = inked(colour);
      ctx.fill();
    }
    ctx.restore();
  };
  const plot = new uPlot({
    ...size(), legend: { show: false }, scales: { x: { time: false }, y: { range } }, cursor: { drag: { x: false, y: false } },
    axes: [[chart.x, 34], [chart.y, 56]].map(([label, size]) => ({
      label, size, labelSize: 20, stroke: () => colourOf("--ink"),
      grid: { stroke: () => colourOf("--line"), width: 1 }, ticks: { stroke: () => colourOf("--line"), width: 1 },
    })),
    series: [{}, ...chart.series.map(({ label, colour, x, shown }) => ({
      label, stroke: inked(colour), width: 2, spanGaps: true, show: shown,
      dash: dashed(colour) ? [6, 4] : undefined,
      points: { show: colour >= 0 && x.length <= FEW_POINTS, size: 5 },
    }))],
    hooks: { drawAxes: [drawBands], setCursor: [(u) => {
      const i = u.cursor.idx;
      outs.forEach((out, s) => { out.textContent = i == null ? "" : short(columns[s][i]); });
      where.textContent = i == null ? "" : `${chart.x}: ${short(xs[i])}`;
    }] },
  }, [xs, ...columns], box);
  const where = document.createElement("span");
  where.className = "readout";
  chart.series.forEach(({ label, colour, shown }, i) => {
    const key = document.createElement("label"), tick = document.createElement("input");
    const swatch = document.createElement("span"), out = document.createElement("span");
    tick.type = "checkbox";
    tick.checked = shown;
    key.classList.toggle("hidden", !tick.checked);
    tick.addEventListener("change", () => {
      plot.setSeries(i + 1, { show: tick.checked });
      key.classList.toggle("hidden", !tick.checked);
    });
    swatch.className = "swatch";
    const ink = inked(colour);
    swatch.style.background = dashed(colour) ? `repeating-linear-gradient(90deg, ${ink} 0 5px, transparent 5px 8px)` : ink;
    out.className = "readout";
    outs.push(out);
    key.append(tick, swatch, label, out);
    keys.append(key);
  });
  keys.append(where);
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const now = plot.cursor.idx ?? (step > 0 ? -1 : xs.length);
    const next = Math.min(Math.max(now + step, 0), xs.length - 1);
    plot.setCursor({ left: plot.valToPos(xs[next], "x"), top: 20 });
  });
  // In the next frame: a size that changes while sizes are reported is an error of its own.
  const fit = () => { if (box.clientWidth && box.clientWidth !== plot.width) plot.setSize(size()); };
  new ResizeObserver(() => requestAnimationFrame(fit)).observe(box);
  figure.plot = plot;
}
const charts = Array.from(document.querySelectorAll("figure.chart"));
charts.forEach(draw);
const redraw = () => { for (const { plot } of charts) plot.redraw(false); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
// Paper is white, and has another width than the screen.
addEventListener("beforeprint", () => {
  document.documentElement.classList.add("on-paper");
  for (const { plot } of charts) plot.setSize({ width: 640, height: 280 });
  redraw();
});
addEventListener("afterprint", () => {
  document.documentElement.classList.remove("on-paper");
  for (const { plot } of charts) plot.setSize({ width: Math.max(plot.root.parentNode.clientWidth, 240), height: 300 });
  redraw();
});
