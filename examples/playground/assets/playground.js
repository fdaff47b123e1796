"use strict";

const $ = id => document.getElementById(id);
const form = $("controls");
const phone = matchMedia("(max-width: 52rem)"); // as in the style sheet
const chart = stackedChart($("chart"),
  [{ name: "allowed", color: "--allow" }, { name: "denied", color: "--deny" }, { name: "failed", color: "--fail" }],
  { label: "Calls of each of the last 60 seconds, by answer; the table below has the last ten", range: [-60.6, .6], height: () => phone.matches ? 130 : 220, span: "Redis is down" });
let current = null; // the settings in force

const put = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };

const gone = "The playground does not answer; start it again.";
let sent = Promise.resolve();

// send asks for a change after those before it, so that the last one stays.
function send(path, body) {
  sent = sent.then(async () => {
    try {
      const reply = await fetch(path, { method: "POST", body: JSON.stringify(body ?? {}) });
      put("problem", reply.ok ? "" : (await reply.text()).trim());
    } catch {
      put("problem", gone);
    }
  });
}

const chosen = () => ({
  algorithm: form.algorithm.value, limit: form.limit.valueAsNumber, window: form.window.valueAsNumber, plan: form.plan.value,
  callers: form.callers.valueAsNumber, rate: form.rate.valueAsNumber, greedy: form.greedy.checked, shared: form.shared.checked, wait: form.wait.checked,
  policy: form.policy.value, down: $("down").getAttribute("aria-pressed") === "true",
});

function apply() {
  if (!form.reportValidity()) {
    const wrong = form.querySelector("input:invalid"), what = wrong.labels[0].textContent.trim();
    put("problem", `“${what}” is ${wrong.value || "empty"}; it can be a whole number from ${wrong.min} to ${wrong.max}.`);
    return;
  }
  current = chosen();
  describe();
  send("/settings", current);
}

// describe says in words what the controls mean.
function describe() {
  const s = chosen(), n = s.limit * (s.plan === "pro" ? 3 : 1), t = s.window + " s";
  put("callers-now", String(s.callers));
  put("rate-now", String(s.rate));
  put("rule", {
    "token-bucket": `${n} at once after a pause, then ${n} in ${t}, evenly.`,
    "fair-token-bucket": `${n} at once, then ${n} in ${t}, for all callers together. Nobody takes what another one needs.`,
    "leaky-bucket": `One at a time, evenly: ${n} in ${t}.`,
    "fixed-window": `${n} in each window of ${t}, which begins with its first request.`,
    "sliding-window": `${n} in any ${t}, counted by sub-windows.`,
    "sliding-log": `${n} in any ${t}, exactly.`,
  }[s.algorithm]);
  form.shared.disabled = s.algorithm === "fair-token-bucket"; // which is one limit, and a key for each
  put("down", s.down ? "Redis is down: bring it back" : "Take Redis down");
}

form.addEventListener("submit", event => event.preventDefault());
form.addEventListener("input", event => { if (event.target.type !== "number") apply(); });
form.addEventListener("change", event => { if (event.target.type === "number") apply(); });
$("down").addEventListener("click", () => {
  $("down").setAttribute("aria-pressed", String($("down").getAttribute("aria-pressed") !== "true"));
  apply();
});
$("burst").addEventListener("click", () => send("/burst", { n: 20 }));
$("neighbours").addEventListener("click", () => { // compare one key, a key for each, and fair shares
  fill({ ...chosen(), limit: 60, window: 10, callers: 3, rate: 2, greedy: true, shared: true });
  apply();
});
$("pause").addEventListener("click", () => send("/pause", { seconds: 10 }));
$("lift").addEventListener("click", () => send("/lift"));
$("reset").addEventListener("click", () => send("/reset"));

function fill(s) {
  for (const name of ["algorithm", "limit", "window", "plan", "callers", "rate", "policy"]) form[name].value = s[name];
  form.greedy.checked = s.greedy;
  form.shared.checked = s.shared;
  form.wait.checked = s.wait;
  $("down").setAttribute("aria-pressed", String(s.down));
  describe();
}

function element(kind, className, text) {
  const e = document.createElement(kind);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

// showStates keeps the boxes of the keys, so that one that is scrolled or has the focus stays so.
function showStates(view) {
  const host = $("states");
  if (view.unread) {
    host.replaceChildren(element("p", "fail", "It cannot be read: " + view.unread));
    return;
  }
  if (host.querySelectorAll(".state").length !== view.states.length) {
    host.replaceChildren(...view.states.map(() => {
      const box = element("div", "state"), first = element("div"), meter = element("div", "meter");
      first.append(element("strong"), element("span"));
      meter.append(element("div"));
      box.append(first, meter, element("code"));
      return box;
    }));
  }
  view.states.forEach((s, i) => {
    const box = host.children[i];
    const set = (selector, text) => { const e = box.querySelector(selector); if (e.textContent !== text) e.textContent = text; };
    set("strong", s.key + ": ");
    set("span", s.words + (s.expires ? " The key expires in " + s.expires + "." : ""));
    set("code", s.raw);
    box.querySelector(".meter > div").style.width = 100 * s.left / s.limit + "%";
  });
}

// showCallers keeps the rows, as showStates does.
function showCallers(callers) {
  const body = $("callers");
  if (body.children.length !== callers.length) {
    body.replaceChildren(...callers.map(() => {
      const row = element("tr"), part = element("td"), meter = element("div", "meter");
      row.append(element("th"), element("td", "number"), element("td", "number"), part);
      row.firstChild.scope = "row";
      meter.append(element("div"));
      part.append(element("span"), meter);
      return row;
    }));
  }
  const all = callers.reduce((sum, c) => sum + c.allowed, 0);
  callers.forEach((c, i) => {
    const [who, asked, allowed, part] = body.children[i].children, percent = Math.round(100 * c.allowed / Math.max(all, 1));
    who.textContent = c.who;
    asked.textContent = String(c.allowed + c.denied + c.failed);
    allowed.textContent = String(c.allowed);
    part.firstChild.textContent = percent + " %";
    part.querySelector(".meter > div").style.width = percent + "%";
  });
}

function show(view) {
  if (!current) {
    current = view.settings;
    fill(current);
    put("where", view.where);
  }
  for (const id of ["allowed", "denied", "failed", "secondary"]) put(id, view.totals[id].toLocaleString("en"));
  put("waiting", String(view.waiting));
  const down = view.settings.down;
  put("health", (down ? "Redis is down. " : "Redis answers. ") +
    ({ closed: "Every request asks it.", open: "Requests do not ask it any more: the choice above decides at once.", "half-open": "One request at a time asks whether it is back." }[view.breaker] || "Every request asks it, and fails if it does not answer."));

  const x = [], at = new Map(view.seconds.map(s => [s.at, s]));
  const none = { allowed: 0, denied: 0, failed: 0 };
  const rows = [];
  for (let ago = 60; ago >= 0; ago--) {
    x.push(-ago);
    rows.push(at.get(view.now - ago) || none);
  }
  chart.set(x, [rows.map(r => r.allowed), rows.map(r => r.denied), rows.map(r => r.failed)],
    view.outages.map(o => [o.from - view.now - .5, (o.to || view.now) - view.now + .5]));
  if ($("table").closest("details").open) {
    $("table").replaceChildren(...rows.slice(-10).reverse().map((r, i) => {
      const row = element("tr");
      row.append(element("th", "", String(i)), ...["allowed", "denied", "failed"].map(k => element("td", "number", String(r[k]))));
      row.firstChild.scope = "row";
      return row;
    }));
  }

  showCallers(view.callers);
  showStates(view);
  put("format", view.unread ? "" : "How to read it: " + view.format + ".");

  $("lines").replaceChildren(...view.lines.map(l => {
    const item = element("li");
    item.append(element("span", "soft", l.at), element("span", "", l.who), element("span", l.kind, l.text));
    return item;
  }));
}

const events = new EventSource("/events"); // it connects again
events.onmessage = event => {
  if ($("problem").textContent === gone) put("problem", "");
  show(JSON.parse(event.data));
};
events.onerror = () => put("problem", gone);
