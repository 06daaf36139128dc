// Latency by method, on a logarithmic scale.

const latency = { made: -1, sort: "count" };
const FINE = 8, DECADES = 7; // from 10 µs to 100 s

function statistics(calls) {
  const methods = new Map();
  for (const c of calls) {
    if (c.code < 0 || c.flags & STREAM) continue;
    let m = methods.get(c.name);
    if (!m) methods.set(c.name, m = { name: c.name, took: [], errors: 0, bars: new Uint32Array(FINE * DECADES), bad: new Uint32Array(FINE * DECADES) });
    m.took.push(c.took);
    const slot = Math.max(0, Math.min(FINE * DECADES - 1, Math.floor((Math.log10(Math.max(c.took, 0.001)) + 2) * FINE)));
    m.bars[slot]++;
    if (failed(c)) {
      m.errors++;
      m.bad[slot]++;
    }
  }
  for (const m of methods.values()) {
    m.took.sort((a, b) => a - b);
    m.count = m.took.length;
    const q = (percent) => m.took[Math.max(Math.ceil((m.count * percent) / 100) - 1, 0)];
    Object.assign(m, { p50: q(50), p90: q(90), p99: q(99), max: m.took[m.count - 1] });
  }
  return [...methods.values()];
}

const LATENCY_HEADS = [["name", "Method"], ["count", "Calls"], ["errors", "Failed"], ["p50", "p50"], ["p90", "p90"], ["p99", "p99"], ["max", "Slowest"]];

function drawLatency() {
  if (latency.made === filter.version && latency.view.firstChild) return;
  latency.made = filter.version;
  const all = statistics(filter.shown);
  all.sort((a, b) => (latency.sort === "name" ? a.name.localeCompare(b.name) : b[latency.sort] - a[latency.sort]));
  if (!all.length) return latency.view.replaceChildren(nothing("Nothing to measure", "No call that matches the filters has ended."));
  const w = 480;
  const labels = el("div", { class: "axis" }, ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s"].map((t, i, list) => {
    const s = el("span", { class: i === list.length - 1 ? "last" : "" }, t);
    s.style.left = `${(i / DECADES) * 100}%`;
    return s;
  }));
  latency.view.replaceChildren(el("div", {}, el("table", { class: "wide" },
    el("thead", {}, el("tr", {}, LATENCY_HEADS.map(([k, label]) => el("th", { class: k === "name" ? "" : "num", "aria-sort": latency.sort === k ? "descending" : undefined }, el("button", { type: "button", class: "plain", onclick: () => {
      latency.sort = k;
      latency.made = -1;
      drawLatency();
    } }, label))), el("th", {}, labels))),
    el("tbody", {}, all.map((m) => el("tr", { onclick: () => setFilter("method", filter.values.method?.value === m.name ? "" : m.name) },
      el("td", {}, m.name), el("td", { class: "num" }, number(m.count)), el("td", { class: `num${m.errors ? " bad" : " soft"}` }, m.errors ? number(m.errors) : "–"),
      ["p50", "p90", "p99", "max"].map((k) => el("td", { class: "num" }, duration(m[k]))), el("td", {}, distribution(m, w)))))),
  el("p", { class: "caption" }, "How many calls took how long; red ones failed. The line marks the median, the dashed line the 99th percentile. Streams are not counted.")));
}

// distribution draws how many calls took how long, with the median and the 99th percentile.
function distribution(m, w) {
  const h = 30, bars = (name, counts) => barsOf(name, counts, Math.max(...m.bars), 2, w, h, h - 4);
  const x = (ms) => Math.max(0, Math.min(w, ((Math.log10(Math.max(ms, 0.01)) + 2) / DECADES) * w));
  const grid = Array.from({ length: DECADES - 1 }, (_, i) => svg("line", { class: "grid", x1: ((i + 1) / DECADES) * w, x2: ((i + 1) / DECADES) * w, y1: 0, y2: h }));
  return svg("svg", { class: "dist", viewBox: `0 0 ${w} ${h}`, preserveAspectRatio: "none", role: "img", "aria-label": `half within ${duration(m.p50)}, 99 of 100 within ${duration(m.p99)}` },
    grid, bars("bar", m.bars), bars("fail", m.bad), svg("line", { class: "p99", x1: x(m.p99), x2: x(m.p99), y1: 1, y2: h }), svg("line", { class: "p50", x1: x(m.p50), x2: x(m.p50), y1: 1, y2: h }));
}
