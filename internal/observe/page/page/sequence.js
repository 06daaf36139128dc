// Calls as a sequence diagram: the selected ones, or the first that match the filters.

const sequence = { made: "" };
const MOST_ARROWS = 240;

function drawSequence() {
  const chosen = model.selected.size > 0;
  const r = range();
  const calls = (chosen ? [...model.selected] : filter.shown.filter((c) => c.began >= r.from)).slice().sort((a, b) => a.began - b.began).slice(0, MOST_ARROWS);
  const bar = el("div", { class: "seqbar" }, chosen ? [`${plural(model.selected.size, "selected call")}`, el("button", { type: "button", onclick: () => {
    model.selected.clear();
    redraw();
  } }, "Select none"), model.selected.size === 2 && el("button", { type: "button", onclick: () => drawCompared(...model.selected) }, "Compare")] : "These are the calls that match the filters. To see only some of them, select them in the table with x or a shift-click.");
  const clients = [...new Set(calls.map((c) => (c.flags & OWN ? "" : c.client)))].filter(Boolean);
  const backs = backendsOf().filter((n) => calls.some((c) => c.legs.some((l) => l.backend === n)));
  const lanes = [...clients.map((n) => `c${n}`), "p", ...backs.map((n) => `b${n}`)];
  // On a telephone all lanes are as wide as the window together, and each arrow has its text above it.
  const tall = narrow(), left = tall ? 48 : 188, wide = sequence.view.clientWidth - (tall ? 16 + 2 * left : 238), between = wide / Math.max(1, lanes.length - 1);
  const step = tall ? between : Math.max(190, Math.min(300, between)), boxW = tall ? 92 : 136;
  const x = (lane) => left + lanes.indexOf(lane) * step, lower = (lane) => (step < boxW && lanes.indexOf(lane) % 2 ? 30 : 0);
  const arrows = [];
  for (const c of calls) {
    const front = `c${c.client}`;
    if (!(c.flags & OWN)) {
      arrows.push({ t: c.began, order: 0, a: front, b: "p", call: c, text: [c.name, podOf(c) && `${podOf(c)}${c.container ? `/${c.container}` : ""}`].filter(Boolean).join(" ") });
      if (ended(c)) arrows.push({ t: c.began + c.took, order: 3, a: "p", b: front, call: c, back: true, bad: failed(c), text: failed(c) ? `${statusOf(c)} ${c.message}` : c.code === LEFT ? statusOf(c) : `${c.memory.length ? "from cache, " : ""}${duration(c.took)}` });
    }
    for (const l of c.legs) {
      const to = `b${l.backend}`;
      arrows.push({ t: c.began + l.began, order: 1, a: "p", b: to, call: c, text: c.name });
      if (ended(l)) arrows.push({ t: c.began + l.began + l.took, order: 2, a: to, b: "p", call: c, back: true, bad: failed(l), text: l.code ? statusOf(l) : duration(l.took) });
    }
  }
  arrows.sort((a, b) => a.t - b.t || a.order - b.order);
  const cut = Math.max(0, arrows.length - MOST_ARROWS), list = arrows.slice(0, MOST_ARROWS);
  if (!list.length) return sequence.view.replaceChildren(bar, nothing("Nothing to draw", "No call matches the filters."));
  const high = tall ? 44 : 28, top = tall ? 84 : 44, H = top + list.length * high + 24, W = tall ? wide + 2 * left : left + 110 + (lanes.length - 1) * step;
  const name = (lane) => (lane === "p" ? "criproxy" : lane.slice(1));
  const squeezed = (text) => (7 * text.length > boxW ? { textLength: boxW - 6, lengthAdjust: "spacingAndGlyphs" } : {});
  const parts = lanes.map((lane) => [svg("line", { class: "life", x1: x(lane), x2: x(lane), y1: 30 + lower(lane), y2: H }), svg("rect", { class: "p", x: x(lane) - boxW / 2, y: 4 + lower(lane), width: boxW, height: 26, rx: 5 }), svg("text", { class: "p", x: x(lane), y: 21.5 + lower(lane), ...squeezed(name(lane)) }, name(lane))]);
  let last = "";
  list.forEach((a, i) => {
    const y = top + i * high + 18, x1 = x(a.a), x2 = x(a.b), way = x2 > x1 ? 1 : -1;
    const kind = a.bad ? "bad" : a.back ? "r" : "c", now = clock(a.t);
    const room = Math.floor((tall ? W : Math.abs(x2 - x1)) / 6.4), words = tall && now !== last ? `${now} ${a.text}` : a.text;
    const text = words.length > room ? `${words.slice(0, room - 1)}…` : words;
    parts.push(svg("g", { class: "call", onclick: () => openCall(a.call) }, svg("title", {}, a.text), svg("rect", { class: "hit", x: 0, y: y - (tall ? 22 : 17), width: W, height: high }),
      now !== last && !tall ? svg("text", { class: "w", x: 8, y: y + 4 }, now) : "",
      svg("line", { class: kind, x1, x2: x2 - way * 6, y1: y, y2: y }),
      a.bad ? svg("path", { class: "x", d: `M${x2 - way * 6 - 4} ${y - 4}l8 8M${x2 - way * 6 - 4} ${y + 4}l8 -8` }) : svg("path", { class: kind, d: `M${x2} ${y}l${-way * 8} -4v8z` }),
      svg("text", { class: `${kind === "r" ? "r" : kind === "bad" ? "l bad" : "l"}`, x: tall ? 0 : (x1 + x2) / 2, y: y - (tall ? 8 : 5) }, text)));
    last = now;
  });
  if (cut || filter.shown.length > calls.length && !chosen) bar.append(el("span", {}, `The first ${number(list.length)} arrows; choose a shorter time or fewer calls to see the rest.`));
  sequence.view.replaceChildren(bar, svg("svg", { class: `seq${tall ? " tall" : ""}`, width: W, height: H, role: "img", "aria-label": "Sequence diagram" }, parts));
}
