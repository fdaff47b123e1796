"use strict";

// stackedChart draws counts over time, stacked in the order of series, and draws them again when the
// page's width or its colours change. Each series is {name, color}, color being a variable of the
// style sheet. Options:
//
//   label   what is seen, for those who do not see it
//   clock   x is in seconds of Unix time, shown in UTC under this name; without it, in seconds. Charts
//           with a clock have one cursor, and show the same part when somebody drags over one
//   range   the ends of the axis of x; without it, those of the data
//   height  in pixels
//
// set(x, counts) shows other data: counts has an array as long as x for each series.
function stackedChart(host, series, options) {
  let plot, x = [], counts = series.map(() => []);
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = v => v >= 1e6 ? +(v / 1e6).toFixed(1) + "M" : v >= 1e4 ? +(v / 1e3).toFixed(1) + "k" : String(v);
  const clock = (t, step) => {
    const [day, time] = new Date(t * 1000).toISOString().slice(0, 19).split("T");
    return step >= 86400 || time === "00:00:00" ? day : time.slice(0, step < 60 ? 8 : 5);
  };
  const order = series.map((_, i) => i).reverse(); // the whole stack first, what is in front last

  // Of a stack, uPlot draws bars from 0 to the running total, the longest first.
  const stacked = () => {
    const totals = [], running = x.map(() => 0);
    counts.forEach(values => totals.push(values.map((v, i) => running[i] += v)));
    return [x, ...order.map(i => totals[i])];
  };

  const draw = () => {
    if (plot) plot.destroy();
    const ink = css("--soft"), grid = css("--line");
    const axis = { stroke: ink, font: "12px system-ui, sans-serif", ticks: { stroke: grid, size: 5 } };
    plot = new uPlot({
      width: host.clientWidth || 300,
      height: options.height || 220,
      tzDate: at => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      cursor: { points: { show: false }, drag: { x: Boolean(options.clock), y: false }, sync: options.clock && { key: "time" } },
      scales: {
        x: { time: Boolean(options.clock), range: options.range && (() => options.range) },
        y: { range: (_, least, most) => [0, Math.max(most * 1.08, 4)] },
      },
      axes: [
        { ...axis, grid: { show: false }, space: options.clock ? 120 : 50, values: options.clock ? (_, ticks, __, ___, step) => ticks.map(t => clock(t, step)) : (_, ticks) => ticks.map(t => t + " s") },
        { ...axis, grid: { stroke: grid, width: 1 }, size: 52, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 1e7, 1e8], values: (_, ticks) => ticks.map(short) },
      ],
      series: [
        options.clock ? { label: "time, " + options.clock, value: (_, v) => v == null ? "" : new Date(v * 1000).toISOString().slice(0, 19).replace("T", " ") } : { label: "at", value: (_, v) => v == null ? "" : v + " s" },
        ...order.map(i => ({
          label: series[i].name,
          fill: css(series[i].color), stroke: css(series[i].color), width: 0,
          paths: uPlot.paths.bars({ size: [.86, 40, 1] }), points: { show: false },
          value: (_, v, __, at) => at == null || v == null ? "" : counts[i][at].toLocaleString("en"),
        })),
      ],
    }, stacked(), host);
    const canvas = host.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", options.label);
    host.querySelectorAll(".u-legend .u-series").forEach((row, at) => { row.style.order = at && order[at - 1] + 1; });
  };

  document.addEventListener("keydown", event => { if (event.key === "Escape") plot.setData(stacked()); }); // shows all again
  draw();
  let width = host.clientWidth;
  new ResizeObserver(() => {
    if (host.clientWidth === width || !host.clientWidth) return;
    width = host.clientWidth;
    plot.setSize({ width, height: options.height || 220 });
  }).observe(host);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return {
    set(newX, newCounts) {
      x = newX; counts = newCounts;
      plot.setData(stacked());
    },
  };
}
