(() => {
  const faults = [];
  const what = e => e.tagName.toLowerCase() + (e.id ? "#" + e.id : "") + (e.className && e.className.split ? "." + e.className.split(" ").join(".") : "") + " " + JSON.stringify(e.textContent.trim().slice(0, 40));
  const visible = e => e.checkVisibility({ visibilityProperty: true });
  const all = selector => [...document.querySelectorAll(selector)].filter(visible);

  for (const e of all("input, select, textarea, button, [role=img], summary, a"))
    if (!(e.getAttribute("aria-label") || (e.labels && [...e.labels].some(l => l.textContent.trim())) || e.textContent.trim() && !e.matches("input, select, textarea")))
      faults.push("no name: " + what(e));
  for (const e of all("img:not([alt])")) faults.push("no text: " + what(e));
  for (const e of all("table")) if (!e.closest(".u-legend") && !e.matches(".u-legend") && !e.querySelector("thead th[scope=col]")) faults.push("no headers: " + what(e));
  const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
  for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) faults.push("twice: #" + id);
  if (!document.documentElement.lang) faults.push("no language");
  if (document.querySelectorAll("h1").length !== 1) faults.push("not one h1");
  if (document.documentElement.scrollWidth > document.documentElement.clientWidth) {
    const wide = all("body *").filter(e => !e.closest(".wide") && Math.max(e.getBoundingClientRect().right, e.getBoundingClientRect().left + e.scrollWidth) > document.documentElement.clientWidth);
    faults.push("wider than the screen: " + wide.map(what).slice(0, 3).join(", "));
  }

  // Contrast by WCAG 2.
  const rgba = color => (color.match(/[\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const color = rgba(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return rgba(getComputedStyle(document.documentElement).getPropertyValue("color-scheme").includes("dark") ? "0,0,0" : "255,255,255");
  };
  const low = new Set();
  for (const e of all("body *")) {
    if (e.closest("script, style") || ![...e.childNodes].some(n => n.nodeType === Node.TEXT_NODE && n.textContent.trim())) continue;
    const [a, b] = [luminance(rgba(getComputedStyle(e).color)), luminance(behind(e))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) low.add("contrast " + contrast.toFixed(2) + ": " + what(e));
  }
  return [...faults, ...[...low].slice(0, 10)];
})()
