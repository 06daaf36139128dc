// The chart of calls over time at the top: all calls, those that match the filters, and failures. Dragging selects a
// time.

const overview = { drag: null };

function buildOverview() {
  const box = $("overview");
  const timeAt = (e) => {
    const r = box.getBoundingClientRect();
    return model.from + ((model.to - model.from) * Math.max(0, Math.min(1, (e.clientX - r.left) / r.width)));
  };
  box.after(el("div", { class: "axis", id: "axis", "aria-hidden": "true" }));
  box.addEventListener("pointerdown", (e) => {
    if (!model.calls.length) return;
    overview.drag = { x: e.clientX, from: timeAt(e) };
    box.setPointerCapture(e.pointerId);
  });
  box.addEventListener("pointermove", (e) => {
    if (overview.drag && Math.abs(e.clientX - overview.drag.x) > 3) {
      const t = timeAt(e);
      setTimes(Math.min(t, overview.drag.from), Math.max(t, overview.drag.from));
    }
  });
  box.addEventListener("pointerup", (e) => {
    if (overview.drag && Math.abs(e.clientX - overview.drag.x) <= 3) setTimes(-Infinity, Infinity);
    overview.drag = null;
  });
}

// countsOf returns how many calls began in each of some thousand buckets of time: all, those that match the filters, and
// failures. It counts only the calls that are new since the last drawing, until the time outgrows the buckets or all calls
// were filtered again.
const BUCKETS = 4096;

function countsOf() {
  let k = overview.counts;
  if (!k || k.made !== filter.made || model.from < k.from || model.to > k.from + k.width * 2 * BUCKETS) {
    const counts = () => new Uint32Array(2 * BUCKETS);
    k = overview.counts = { made: filter.made, from: model.from, width: Math.max(model.to - model.from, 1) / BUCKETS, seen: 0, shown: 0, all: counts(), some: counts(), bad: counts() };
  }
  const bucket = (c) => Math.floor((c.began - k.from) / k.width);
  for (; k.seen < model.calls.length; k.seen++) {
    const c = model.calls[k.seen];
    if (filter.own || !(c.flags & OWN)) k.all[bucket(c)]++;
  }
  for (; k.shown < filter.shown.length; k.shown++) {
    const c = filter.shown[k.shown];
    k.some[bucket(c)]++;
    if (failed(c)) k.bad[bucket(c)]++;
  }
  return k;
}

function drawOverview() {
  const box = $("overview");
  const width = box.clientWidth, height = box.clientHeight;
  if (!model.calls.length || !width) return box.replaceChildren();
  const n = Math.max(20, Math.floor(width / 5));
  const span = Math.max(model.to - model.from, 1);
  const all = new Uint32Array(n), some = new Uint32Array(n), bad = new Uint32Array(n);
  const k = countsOf();
  for (let i = 0; i < k.all.length; i++) {
    const slot = Math.max(0, Math.min(n - 1, Math.floor(((k.from + (i + 0.5) * k.width - model.from) / span) * n)));
    all[slot] += k.all[i];
    some[slot] += k.some[i];
    bad[slot] += k.bad[i];
  }
  const most = Math.max(...all), bars = (name, counts, least) => barsOf(name, counts, most, least, width, height, height - 5);
  const x = (t) => ((Math.max(model.from, Math.min(model.to, t)) - model.from) / span) * width;
  const picture = svg("svg", { "aria-hidden": "true" }, bars("all", all, 1.5), bars("some", some, 1.5), bars("fail", bad, 3),
    bandsOf().filter((b) => b.to > model.from && b.from < model.to).sort((a, b) => rankOf(a.what) - rankOf(b.what)).map((b) =>
      svg("rect", { class: `band ${classOf(b.what)}`, x: x(b.from), y: 0, width: Math.max(2, x(b.to) - x(b.from)), height: 2 * rankOf(b.what) })));
  if (filter.from > -Infinity || filter.to < Infinity) {
    const a = x(filter.from), b = x(filter.to);
    picture.append(svg("rect", { class: "brush", x: a, y: 0, width: Math.max(b - a, 1), height }), ...[a, b].map((at) => svg("line", { class: "edge", x1: at, x2: at, y1: 0, y2: height })));
  }
  box.replaceChildren(picture);
  drawAxis($("axis"), model.from, model.to, width, 12);
}

// barsOf draws numbers as bars. Their heights are the square roots: that of most is as high as it can be.
function barsOf(name, counts, most, least, width, height, highest) {
  const wide = width / counts.length;
  let d = "";
  counts.forEach((n, i) => {
    if (n) d += `M${(i * wide).toFixed(1)} ${height}h${(wide - 1).toFixed(1)}v${-Math.max(least, Math.sqrt(n / most) * highest).toFixed(1)}h${(1 - wide).toFixed(1)}z`;
  });
  return svg("path", { class: name, d });
}

// drawAxis writes times under or above a picture.
function drawAxis(axis, from, to, width, n) {
  const t = ticks(from, to, Math.min(n, Math.max(2, Math.floor(width / 90))));
  axis.replaceChildren(...t.all.map((at) => {
    const mark = el("span", {}, clock(at, t.digits));
    const x = ((at - from) / Math.max(to - from, 1)) * width;
    mark.style.left = `${x}px`;
    mark.className = x > width - 34 ? "last" : x < 34 ? "first" : "";
    return mark;
  }));
}
