// The panels of the dashboard, drawn from the metrics that this page has received since it was opened.

const metrics = { panels: [], points: [], at: -1, view: null, parts: [], told: "" };
const POINTS = 1800;       // an hour of them
const GAP = 8000;          // a line ends where nothing was heard for so many milliseconds
const LEAST_SPAN = 60_000; // of the time that panels show
const LINES = 10;          // of a panel: those that were highest
const PLOT = { height: 120, left: 58, right: 10, top: 8, bottom: 18 };

function buildMetrics(view) {
  metrics.view = view;
}

function takePanels(panels) {
  const told = JSON.stringify(panels);
  if (told === metrics.told) return; // the connection is another one, the page is not
  Object.assign(metrics, { panels, told });
  metrics.parts = panels.map((p, i) => {
    const body = el("div", { class: "plot" }), values = el("ul", { class: "values" });
    const panel = el("figure", { class: "panel", tabindex: 0, role: "group", "aria-label": `${p.title}: ${p.about}`, onkeydown: chooseTime },
      el("figcaption", {}, el("h3", {}, p.title), el("p", {}, p.about)), p.words ? null : body, values);
    body.addEventListener("pointermove", (e) => pointAt(body, e.clientX));
    body.addEventListener("pointerleave", () => setTime(-1));
    return { panel, body, values, series: new Map(), i };
  });
  const head = el("p", { class: "caption" });
  metrics.head = head;
  metrics.view.replaceChildren(head, el("div", { class: "panels" }, metrics.parts.map((p) => p.panel)));
}

// A point is a time, and the values of each panel at it.
function takeMetrics(point) {
  point.panels = point.panels.map((pairs) => new Map(pairs));
  metrics.points.push(point);
  if (metrics.points.length > POINTS) {
    metrics.points.shift();
    if (metrics.at >= 0) metrics.at = Math.max(0, metrics.at - 1);
  }
  // A series keeps its colour.
  for (const { series, i } of metrics.parts) for (const name of point.panels[i].keys()) if (!series.has(name)) series.set(name, series.size);
  if (current === "metrics") redraw();
}

function setTime(at) {
  if (metrics.at === at) return;
  metrics.at = at;
  redraw();
}

function chooseTime(e) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
  if (!step || !metrics.points.length) return;
  const last = metrics.points.length - 1, at = (metrics.at < 0 ? last : metrics.at) + step;
  setTime(at >= last ? -1 : Math.max(0, at));
  e.preventDefault();
  e.stopPropagation();
}

function pointAt(body, clientX) {
  const { left, width } = body.getBoundingClientRect(), { from, to } = span();
  const t = from + ((clientX - left - PLOT.left) / Math.max(1, width - PLOT.left - PLOT.right)) * (to - from);
  let at = 0;
  metrics.points.forEach((p, i) => {
    if (Math.abs(p.t - t) < Math.abs(metrics.points[at].t - t)) at = i;
  });
  setTime(at);
}

function span() {
  const { points } = metrics, to = points[points.length - 1].t;
  return { from: Math.min(points[0].t, to - LEAST_SPAN), to };
}

function drawMetrics() {
  const { points } = metrics;
  if (!points.length) {
    (metrics.head || metrics.view).replaceChildren(el("b", {}, "No answer yet. "), "This page asks criproxy for its metrics every two seconds.");
    return;
  }
  const { from, to } = span(), chosen = points[metrics.at] || points[points.length - 1];
  metrics.head.replaceChildren(metrics.at < 0 ? "" : el("b", {}, `At ${clock(chosen.t, 0)}. `),
    `Since ${clock(points[0].t, 0)}, when this page was opened, and at most the latest hour: criproxy stores nothing of this. Rates are those of half a minute. ← and → in a panel choose a time. `,
    "Prometheus and Grafana keep more, with the same panels: packaging/monitoring.");
  metrics.parts.forEach((part, i) => {
    const p = metrics.panels[i], now = chosen.panels[i];
    if (p.words) return drawStates(part, p, now);
    const highest = new Map();
    for (const point of points) for (const [name, v] of point.panels[i]) highest.set(name, Math.max(v, highest.get(name) ?? 0));
    const names = [...highest.keys()].sort((a, b) => highest.get(b) - highest.get(a)).slice(0, LINES).sort((a, b) => a.localeCompare(b));
    const top = niceTop(Math.max(0, ...names.map((n) => highest.get(n))));
    part.body.replaceChildren(plot(part, names, p.unit, top, from, to, chosen));
    const more = highest.size - names.length;
    part.values.replaceChildren(...names.map((name) => el("li", {}, el("i", { class: `s${part.series.get(name) % LINES}` }), name || "criproxy", " ", el("b", {}, now.has(name) ? inUnit(now.get(name), p.unit) : "–"))),
      more ? el("li", { class: "soft" }, `and ${number(more)} more, lower`) : "", names.length ? "" : el("li", { class: "soft" }, "nothing so far"));
  });
}

function drawStates(part, p, now) {
  part.values.replaceChildren(...[...now].map(([name, v]) => el("li", { class: `state ${["bad", "good"][v] ?? "slow"}` }, name && `${name} `, el("b", {}, p.words[v] ?? number(v)))), now.size ? "" : el("li", { class: "soft" }, "there is none"));
}

// plot draws the lines of a panel.
function plot(part, names, unit, top, from, to, chosen) {
  const { points } = metrics, width = Math.max(200, part.body.clientWidth), { height, left, right, top: above, bottom } = PLOT;
  const x = (t) => left + ((t - from) / Math.max(to - from, 1)) * (width - left - right);
  const y = (v) => height - bottom - (v / top) * (height - bottom - above);
  const grid = [0, 0.5, 1].map((share) => [svg("line", { class: "grid", x1: left, x2: width - right, y1: y(top * share), y2: y(top * share) }), svg("text", { x: left - 6, y: y(top * share) + 3.5, class: "y" }, inUnit(top * share, unit))]);
  const t = ticks(from, to, Math.max(2, Math.floor(width / 110)));
  const times = t.all.map((at) => svg("text", { class: "x", x: Math.min(width - 24, Math.max(left + 4, x(at))), y: height - 4 }, clock(at, 0)));
  const lines = names.map((name) => {
    let d = "", before = null;
    for (const point of points) {
      const v = point.panels[part.i].get(name);
      if (v === undefined) {
        before = null;
        continue;
      }
      d += `${before !== null && point.t - before < GAP ? "L" : "M"}${x(point.t).toFixed(1)} ${y(v).toFixed(1)}${before === null ? "h.01" : ""}`;
      before = point.t;
    }
    return svg("path", { class: `line s${part.series.get(name) % LINES}`, d });
  });
  const cursor = metrics.at < 0 ? "" : svg("line", { class: "cursor", x1: x(chosen.t), x2: x(chosen.t), y1: above, y2: height - bottom });
  return svg("svg", { width, height, "aria-hidden": "true" }, grid, times, lines, cursor);
}

// niceTop returns a round number that is at least v.
function niceTop(v) {
  if (v <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(v));
  return unit * [1, 2, 4, 10].find((n) => n * unit >= v * 0.999);
}

const UNITS = { s: (v) => (v === 0 ? "0" : duration(v * 1000)), reqps: (v) => `${short(v)}/s`, ops: (v) => `${short(v)}/s`, Bps: (v) => `${bytes(Math.round(v))}/s`, bytes: (v) => bytes(Math.round(v)), percentunit: (v) => `${short(v * 100)} %` };

const inUnit = (v, unit) => (UNITS[unit] || short)(v);

// short prints a number with few digits.
const short = (v) => (Number.isInteger(v) ? number(v) : v < 0.01 ? v.toPrecision(1) : v < 1000 ? String(Number(three(v))) : number(Math.round(v)));
