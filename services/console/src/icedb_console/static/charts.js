// Draws charts with uPlot: a figure has its numbers in data-chart (views.py says which), words stand under the bars.
"use strict";

(() => {
  const drawn = new Map();
  const HUES = ["blue", "orange", "green", "red", "amber", "quiet"];
  const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const EXACT = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });
  const POWERS = Array.from({ length: 60 }, (_, at) => 2 ** at);
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
  const HEIGHT = 190;
  const CHAR_PX = 7;
  const MAX_WORD = 22;

  const inBytes = (value) => {
    const at = Math.min(Math.floor(Math.log2(Math.max(Math.abs(value), 1)) / 10), UNITS.length - 1);
    return `${+(value / 1024 ** at).toFixed(1)} ${UNITS[at]}`;
  };
  const SUFFIXES = { K: " k", M: " M", B: " G", T: " T" };
  const inCounts = (value) => COMPACT.format(value).replace(/[KMBT]$/, (each) => SUFFIXES[each]); // as on the pages
  const SHORT = { bytes: inBytes, count: inCounts };
  const LONG = { bytes: inBytes, count: (value) => EXACT.format(value) };

  /** Return stripes: what a colour says a pattern says, too. */
  const stripes = (color) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.strokeStyle = color;
    pen.lineWidth = 2;
    pen.beginPath();
    [-8, 0, 8].forEach((at) => { pen.moveTo(at - 1, 9); pen.lineTo(at + 9, -1); });
    pen.stroke();
    return pen.createPattern(tile, "repeat");
  };

  const addKeys = (caption, series) => series.filter((each) => each.name).forEach(({ name, hue, look }) => {
    const item = document.createElement("span");
    const key = document.createElement("i");
    key.className = `key ${look}`;
    key.style.color = `var(--${hue})`;
    item.append(key, ` ${name}`);
    caption.append(item);
  });

  const draw = (figure) => {
    const chart = JSON.parse(figure.dataset.chart);
    const css = getComputedStyle(document.documentElement);
    const color = (name) => css.getPropertyValue(`--${name}`).trim();
    const series = chart.series.map((each, at) => ({ ...each, hue: HUES[each.look === "hatch" ? at - 1 : at] }))
      .map((each) => ({ ...each, color: color(each.hue) }))
      .filter((each) => each.values.some((value) => value !== null));
    const many = chart.grouped ? series.length : 1;
    const step = many > 1 ? many + 1 : 1; // a gap after each group
    const xs = Array.from({ length: chart.x.length * step - (step - many) }, (_, at) => at);
    const center = (group) => group * step + (many - 1) / 2;
    const groupAt = (x) => Math.floor(x / step);
    const values = series.map((each, own) => xs.map((x) => (
      many === 1 || x % step === own ? each.values[groupAt(x)] ?? null : null
    )));
    const word = (group) => {
      const text = chart.x[group] ?? "";
      return text.length > MAX_WORD ? `${text.slice(0, MAX_WORD - 1)}…` : text;
    };
    const wordPx = CHAR_PX * Math.min(Math.max(...chart.x.map((each) => each.length)), MAX_WORD) + 14;
    const zeroed = (_, min, max) => [Math.min(0, min * 1.05), Math.max(0, max * 1.05) || 1];
    const unitOf = (scale) => series.find((each) => (each.look === "points") === (scale === "points"))?.unit;
    const axis = (scale, side) => ({
      scale, side, size: 64, stroke: color("quiet"), show: Boolean(unitOf(scale)),
      grid: { show: scale === "y", stroke: color("line"), width: 1 }, ticks: { show: false },
      ...(unitOf(scale) === "bytes" ? { incrs: POWERS } : {}),
      values: (_, splits) => splits.map((each) => (
        scale === "points" && each % 1 ? "" : SHORT[unitOf(scale)](each)
      )),
    });
    const told = document.createElement("output");
    const caption = figure.querySelector("figcaption");
    const size = () => ({ width: Math.max(figure.clientWidth, 200), height: HEIGHT });
    const plot = new uPlot({
      ...size(),
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, range: [-0.6, xs.length - 0.4] }, y: { range: zeroed }, points: { range: zeroed } },
      axes: [{
        stroke: color("quiet"), grid: { show: false }, ticks: { show: false }, space: 1, size: 28,
        splits: (u) => {
          const every = Math.max(1, Math.ceil(chart.x.length * wordPx / (u.bbox.width / devicePixelRatio)));
          return chart.x.map((_, at) => center(at)).filter((_, at) => at % every === 0);
        },
        values: (_, splits) => splits.map((each) => word(groupAt(each))),
      }, axis("y", 3), axis("points", 1)],
      series: [{}, ...series.map(({ look, color: own }) => (look === "points"
        ? { scale: "points", stroke: own, paths: () => null, points: { show: true, size: 7, fill: own } }
        : {
          scale: "y", stroke: own, width: look === "hatch" ? 1 : 0, points: { show: false },
          fill: look === "hatch" ? stripes(own) : own, paths: uPlot.paths.bars({ size: [0.8, 60] }),
        }))],
      hooks: {
        setCursor: [(u) => {
          const group = u.cursor.idx === null || u.cursor.idx === undefined ? -1 : groupAt(u.cursor.idx);
          const parts = series.filter((each) => group >= 0 && (each.values[group] ?? null) !== null)
            .map((each) => `${each.name ? `${each.name} ` : ""}${LONG[each.unit](each.values[group])}`);
          told.textContent = parts.length ? `${chart.x[group]}: ${parts.join(", ")}` : "";
        }],
      },
    }, [xs, ...values], figure);
    const width = new ResizeObserver(() => { if (figure.clientWidth !== plot.width) plot.setSize(size()); });
    width.observe(figure);
    if (!drawn.has(figure)) addKeys(caption, series);
    caption.append(told);
    drawn.set(figure, () => { width.disconnect(); told.remove(); plot.destroy(); });
  };

  const drawAll = () => {
    drawn.forEach((end, figure) => { if (!figure.isConnected) { end(); drawn.delete(figure); } });
    document.querySelectorAll("[data-chart]").forEach((figure) => { if (!drawn.has(figure)) draw(figure); });
  };
  drawAll();
  document.addEventListener("refreshed", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    drawn.forEach((end, figure) => { end(); draw(figure); });
  });
})();
