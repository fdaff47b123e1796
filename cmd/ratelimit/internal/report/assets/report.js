"use strict";

// What the log said stays text: it reaches the page by textContent only.
{
  const data = JSON.parse(document.getElementById("data").textContent);
  const charts = document.getElementById("charts");
  const sideBySide = 4; // so many charts below each other; of more limits, one is picked

  const units = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
  const inWords = seconds => {
    const [length, name] = units.find(([length]) => seconds % length === 0), n = seconds / length;
    return n === 1 ? "one " + name : n + " " + name + "s";
  };
  const counts = limit => [data.total.map((n, i) => n - data.denied[limit][i]), data.denied[limit]];

  function draw(limit, title) {
    if (title) {
      const heading = document.createElement("h3");
      heading.className = "chart-title";
      heading.textContent = title;
      charts.append(heading);
    }
    const host = document.createElement("div");
    host.className = "chart";
    charts.append(host);
    const chart = stackedChart(host, [{ name: "allowed", color: "--allow" }, { name: "denied", color: "--deny" }],
      { label: "Requests allowed and denied over time" + (title ? " by " + title : "") + "; the table below has the figures", clock: data.zone,
        bars: seconds => { document.getElementById("bar").textContent = inWords(seconds); } });
    chart.set(data.x, counts(limit));
    return chart;
  }

  if (charts && data.labels.length <= sideBySide) {
    data.labels.forEach((label, limit) => draw(limit, data.labels.length > 1 ? label : ""));
  } else if (charts) {
    const which = document.getElementById("which");
    data.labels.forEach((label, limit) => which.append(new Option(label, limit)));
    const chart = draw(0, "");
    which.addEventListener("input", () => chart.set(data.x, counts(Number(which.value))));
    document.getElementById("pick").hidden = false;
  }

  // The table is long, and made when somebody opens it.
  const table = document.getElementById("time-table");
  table?.addEventListener("toggle", () => {
    const body = table.querySelector("tbody");
    if (!table.open || body.childElementCount) return;
    body.append(...data.times.map((time, i) => {
      const row = document.createElement("tr");
      const cell = (kind, text) => {
        const e = row.appendChild(document.createElement(kind));
        e.textContent = text;
        return e;
      };
      cell("th", time).scope = "row";
      for (const n of [data.total[i], ...data.denied.map(d => d[i])]) cell("td", n.toLocaleString("en")).className = "number";
      return row;
    }));
  });
  document.body.dataset.drawn = "true";
}
