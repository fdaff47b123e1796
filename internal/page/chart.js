"use strict";

// stackedChart draws counts over time, stacked in the order of series, and draws them again when the
// page's width or its colours change. Each series is {name, color}, color being a variable of the
// style sheet. Options:
//
//   label   what is seen, for those who do not see it
//   clock   x is in seconds of Unix time, shown in UTC under this name; without it, in seconds, up to now.
//           Charts with a clock have one cursor, and show the same part when somebody drags over one.
//           Where the page has too few pixels for a bar for each x, a bar is several of them
//   bars    is called with the seconds of a bar whenever they change
//   range   the ends of the axis of x; without it, those of the data
//   height  returns it in pixels; without it, 220
//   span    what a span is, see set
//
// set(x, counts, spans) shows other data: counts has an array as long as x for each series, and spans are
// parts of x, of two ends each, that are marked.
function stackedChart(host, series, options) {
  let plot, spans = [], x = [], counts = series.map(() => []), shown = { x, counts, seconds: 0 };
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = v => v >= 1e6 ? +(v / 1e6).toFixed(1) + "M" : v >= 1e4 ? +(v / 1e3).toFixed(1) + "k" : String(v);
  const clock = (t, step) => {
    const [day, time] = new Date(t * 1000).toISOString().slice(0, 19).split("T");
    return step >= 86400 || time === "00:00:00" ? day : time.slice(0, step < 60 ? 8 : 5);
  };
  const order = series.map((_, i) => i).reverse(); // the whole stack first, what is in front last

  // Of a stack, uPlot draws bars from 0 to the running total, the longest first.
  const stacked = () => {
    const totals = [], running = shown.x.map(() => 0);
    shown.counts.forEach(values => totals.push(values.map((v, i) => running[i] += v)));
    return [shown.x, ...order.map(i => totals[i])];
  };

  // secondsOf is how long a bar is so that it has three pixels: what people count in.
  const lengths = [1, 5, 15, 60, 300, 900, 3600, 21600, 86400, 604800, 2419200, 31449600];
  const secondsOf = (from, to) => {
    const step = x[1] - x[0], most = (host.clientWidth - 70) / 3; // 70 for the axis of counts, and around
    return Math.max(step, lengths.find(l => l >= step && (to - from) / l <= most) || lengths.at(-1));
  };

  // group makes bars of so many seconds, and reports whether they are others than before.
  const group = seconds => {
    if (seconds === shown.seconds) return false;
    if (seconds === x[1] - x[0]) {
      shown = { x, counts, seconds };
    } else {
      shown = { x: [], counts: series.map(() => []), seconds };
      x.forEach((t, i) => {
        const begin = Math.floor(t / seconds) * seconds;
        if (shown.x.at(-1) !== begin) {
          shown.x.push(begin);
          shown.counts.forEach(values => values.push(0));
        }
        shown.counts.forEach((values, s) => { values[shown.x.length - 1] += counts[s][i]; });
      });
    }
    if (options.bars) options.bars(seconds);
    return true;
  };
  const grouped = () => options.clock && x.length > 1; // else, a bar is an x
  const regroup = () => {
    const { min, max } = plot.scales.x;
    if (!grouped() || min == null || !group(secondsOf(min, max))) return;
    plot.setData(stacked(), false);
    plot.setScale("x", { min, max }); // which sets the scale of the counts too
  };

  // all shows everything.
  const all = () => {
    if (!grouped()) shown = { x, counts, seconds: 0 };
    else {
      shown.seconds = 0; // of other data, perhaps
      group(secondsOf(x[0], x.at(-1)));
    }
    plot.setData(stacked());
  };

  const height = options.height || (() => 220);
  // onSpans draws for each span that is seen, within the chart.
  const onSpans = paint => u => {
    const { left, top, width, height } = u.bbox, c = u.ctx;
    c.save();
    c.beginPath();
    c.rect(left, top, width, height);
    c.clip();
    for (const span of spans) {
      const [begin, end] = span.map(at => Math.max(u.valToPos(at, "x", true), left));
      if (end > left) paint(c, begin, end, u.bbox);
    }
    c.restore();
  };
  const shade = onSpans((c, begin, end, { top, height }) => {
    c.fillStyle = css("--span");
    c.fillRect(begin, top, end - begin, height);
  });
  const name = onSpans((c, begin, _, { left, top, width }) => {
    const dot = devicePixelRatio;
    c.font = 12 * dot + "px system-ui, sans-serif";
    c.textAlign = "left";
    c.textBaseline = "top";
    c.fillStyle = css("--ink");
    c.fillText(options.span, Math.min(begin + 4 * dot, left + width - c.measureText(options.span).width - 4 * dot), top + 2 * dot);
  });

  const draw = () => {
    if (plot) plot.destroy();
    const ink = css("--soft"), grid = css("--line");
    const axis = { stroke: ink, font: "12px system-ui, sans-serif", ticks: { stroke: grid, size: 5 } };
    plot = new uPlot({
      width: host.clientWidth || 300,
      height: height(),
      tzDate: at => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      cursor: { points: { show: false }, drag: { x: Boolean(options.clock), y: false }, sync: options.clock && { key: "time" } },
      scales: {
        x: { time: Boolean(options.clock), range: options.range && (() => options.range) },
        y: { range: (_, least, most) => [0, Math.max(most * 1.08, 4)] },
      },
      hooks: {
        drawClear: [shade],
        draw: [name],
        setLegend: [u => { u.root.querySelector(".u-legend .u-series").style.visibility = u.cursor.idx == null ? "hidden" : ""; }],
        setScale: [(_, key) => { if (key === "x") regroup(); }],
      },
      axes: [
        { ...axis, grid: { show: false }, size: 34, space: options.clock ? 120 : 50, values: options.clock ? (_, ticks, __, ___, step) => ticks.map(t => clock(t, step)) : (_, ticks) => ticks.map(t => t + " s") },
        { ...axis, grid: { stroke: grid, width: 1 }, size: 52, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 1e7, 1e8], values: (_, ticks) => ticks.map(short) },
      ],
      series: [
        options.clock ? { label: "time, " + options.clock, value: (_, v) => v == null ? "" : new Date(v * 1000).toISOString().slice(0, 19).replace("T", " ") } : { label: "seconds ago", value: (_, v) => v == null ? "" : String(-v) },
        ...order.map(i => ({
          label: series[i].name,
          fill: css(series[i].color), stroke: css(series[i].color), width: 0,
          paths: uPlot.paths.bars({ size: [.86, 40, 1] }), points: { show: false },
          value: (_, v, __, at) => at == null || v == null ? "" : shown.counts[i][at].toLocaleString("en"),
        })),
      ],
    }, stacked(), host);
    const canvas = host.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", options.label);
    host.querySelectorAll(".u-legend .u-series").forEach((row, at) => { row.style.order = at ? order[at - 1] : series.length; });
  };

  document.addEventListener("keydown", event => { if (event.key === "Escape") all(); });
  draw();
  let width = host.clientWidth;
  new ResizeObserver(() => {
    if (host.clientWidth === width || !host.clientWidth) return;
    width = host.clientWidth;
    plot.setSize({ width, height: height() });
    regroup();
  }).observe(host);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return {
    set(newX, newCounts, newSpans = []) {
      x = newX; counts = newCounts; spans = newSpans;
      all();
    },
  };
}
