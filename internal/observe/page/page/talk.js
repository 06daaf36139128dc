// Who talks to whom: clients, criproxy and runtimes, with the amount of data, and failures.

const talk = { made: -1 };

function drawTalk() {
  const tall = talk.view.clientWidth < 620; // one below the other
  if (talk.made === `${filter.version} ${tall}` && talk.view.firstChild) return;
  talk.made = `${filter.version} ${tall}`;
  const clients = new Map(), backs = new Map();
  const partial = [];
  const of = (map, name) => map.get(name) || map.set(name, { name, count: 0, failed: 0, memory: 0, took: [], pids: new Set(), bytes: 0 }).get(name);
  for (const b of model.info.backends || []) of(backs, b.name).address = b.address;
  for (const c of filter.shown) {
    if (c.flags & PARTIAL && !c.pid && !(c.flags & OWN)) {
      partial.push(lackOf(c)); // no client of that name exists
      continue;
    }
    const who = of(clients, c.flags & OWN ? "criproxy itself" : c.client);
    who.count++;
    who.bytes += c.bytesIn + c.bytesOut;
    if (failed(c)) who.failed++;
    if (c.pid) who.pids.add(c.pid);
    for (const l of c.legs) {
      const b = of(backs, l.backend);
      b.count++;
      if (l.code > 0) b.failed++;
      if (l.memory) b.memory++;
      else if (!(c.flags & STREAM) && l.code >= 0) b.took.push(l.took);
    }
    for (const name of c.memory) if (!c.legs.some((l) => l.backend === name)) of(backs, name).memory++;
  }
  if (!clients.size && !backs.size) return talk.view.replaceChildren(nothing("No calls here", "No call matches the filters."));
  const states = new Map([...bandsOf().filter((b) => b.to === Infinity).map((b) => [b.backend, b]), ...conditionsOf().map((c) => [c.name, c])]);
  const left = [...clients.values()].sort((a, b) => b.count - a.count).slice(0, 12), right = [...backs.values()];
  const boxH = 84, gap = 18, W = tall ? 380 : 1120, boxW = tall ? 310 : 280, step = boxH + gap;
  const H = tall ? (left.length + right.length) * step + 124 + gap + 30 : Math.max(left.length, right.length, 1) * step + 30;
  const yOf = (i, all) => (tall ? 15 + i * step + (all === right ? left.length * step + 124 + gap : 0) : 15 + (H - 30 - all.length * step + gap) / 2 + i * step);
  const hub = tall ? { x: 0, w: W, y: yOf(left.length, left), h: 124 } : { x: W / 2 - 95, w: 190, y: H / 2 - 62, h: 124 };
  const most = Math.max(1, ...left.map((c) => c.count), ...right.map((b) => b.count));
  const thick = (n) => (n ? 1.5 + 16 * Math.sqrt(n / most) : 0);
  const parts = [];
  const wire = (x1, y1, x2, y2, e, toRight) => {
    const mid = (x1 + x2) / 2, d = tall ? `M${x1} ${y1}Q${Math.max(x1, x2)} ${toRight ? y2 : y1} ${x2} ${y2}` : `M${x1} ${y1}C${mid} ${y1} ${mid} ${y2} ${x2} ${y2}`;
    parts.push(svg("path", { d, "stroke-width": thick(e.count).toFixed(1) }));
    if (e.failed) parts.push(svg("path", { d, class: "fail", "stroke-width": Math.max(1.2, thick(e.count) * Math.sqrt(e.failed / e.count) * 0.5).toFixed(1) }));
    const lx = toRight ? x2 - (x2 - x1) * 0.3 : x1 + (x2 - x1) * 0.3, ly = toRight ? y2 + (y1 - y2) * 0.22 : y1 + (y2 - y1) * 0.22;
    if (!tall) parts.push(svg("text", { class: "n", x: lx, y: ly - 8 - thick(e.count) / 2 }, plural(e.count, "call")));
  };
  const spread = (i, n) => hub.y + hub.h / 2 + (i - (n - 1) / 2) * Math.min(22, 90 / Math.max(n, 1));
  const edge = (i, all) => W - 12 - i * Math.min(20, 50 / all.length);
  left.forEach((c, i) => wire(boxW, yOf(i, left) + boxH / 2, tall ? edge(i, left) : hub.x, tall ? hub.y : spread(i, left.length), c, false));
  right.forEach((b, i) => wire(tall ? edge(i, right) : hub.x + hub.w, tall ? hub.y + hub.h : spread(i, right.length), tall ? boxW : W - boxW, yOf(i, right) + boxH / 2, b, true));
  const who = (x, y, title, lines, filterName, value, count, sign) => {
    const choose = () => setFilter(filterName, filter.values[filterName]?.value === value ? "" : value);
    parts.push(svg("g", { class: "who", tabindex: 0, role: "button", "aria-label": `${title}: ${lines.map((l) => l[0]).join(", ")}`, onclick: choose, onkeydown: (e) => e.key === "Enter" && (e.stopPropagation(), choose()) },
      svg("rect", { x, y, width: boxW, height: boxH, rx: 8 }), sign ? svg("foreignObject", { x: x + 16, y: y + 17.5, width: 9, height: 9 }, signOf(sign)) : "",
      svg("text", { class: "t", x: x + (sign ? 32 : 16), y: y + 26.5 }, title.slice(0, 30)), tall ? svg("text", { class: "n count", x: x + boxW - 12, y: y + 26.5 }, plural(count, "call")) : "", lines.map(([text, kind], k) => svg("text", { class: kind || "", x: x + 16, y: y + 48 + k * 18 }, text.slice(0, 40)))));
  };
  left.forEach((c, i) => {
    const pids = [...c.pids];
    who(0, yOf(i, left), c.name, [[pids.length > 1 ? `${pids.length} processes` : pids.length ? `process ${pids[0]}` : "unknown process"], [`${bytes(c.bytes)}${c.failed ? `, ${number(c.failed)} failed` : ", none failed"}`, c.failed ? "bad" : ""]], "client", c.name, c.count);
  });
  right.forEach((b, i) => {
    const c = states.get(b.name), at = live.on ? "" : " at the end", since = c && c.what !== "up" && (c.since ?? c.from);
    const state = c ? c.what + (since ? ` ${sinceOf(since)}` : at) : b.took.length ? `answered${at}` : "not called";
    const sign = c ? classOf(c.what) : b.took.length ? "up" : "";
    b.took.sort((x, y) => x - y);
    const half = b.took.length && sign === "up" ? `, half within ${duration(b.took[Math.floor(b.took.length / 2)])}` : "";
    who(tall ? 0 : W - boxW, yOf(i, right), b.name || "primary", [[`${state}${half}`, { gone: "bad", slow: "slow", connecting: "slow" }[sign] || ""],
      [`${b.failed ? `${number(b.failed)} failed` : "none failed"}${b.memory ? `, ${number(b.memory)} from cache` : ""}`, b.failed ? "bad" : b.memory ? "slow" : ""]], "backend", b.name, b.count, sign);
  });
  const rewritten = filter.shown.reduce((n, c) => n + (c.changes > 0 && !c.memory.length ? c.changes : 0), 0);
  parts.push(svg("g", { class: "hub" }, svg("rect", { x: hub.x, y: hub.y, width: hub.w, height: hub.h, rx: 8 }), svg("text", { class: "t", x: hub.x + 18, y: hub.y + 32 }, "criproxy"),
    [plural(filter.shown.length, "call"), `${number(rewritten)}${filter.shown.some((c) => c.changes < 0) ? "+" : ""} ${rewritten === 1 ? "field" : "fields"} rewritten`, `${number(filter.shown.filter((c) => c.memory.length).length)} from cache`].map((t, k) => svg("text", { x: hub.x + 18, y: hub.y + 56 + k * 19 }, t))));
  talk.view.replaceChildren(svg("svg", { class: "talk", viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": "Who talks to whom" }, parts),
    partial.length ? el("p", { class: "caption" }, `${partial.length === 1 ? "1 call is left out: its beginning, which names the client, is" : `${number(partial.length)} calls are left out: their beginnings, which name the client, are`} ${[...new Set(partial)].join(" or ")}.`) : "", matrix(left, right));
}

// matrix shows how often each client and runtime had calls of each method.
function matrix(clients, backs) {
  const methods = new Map();
  const bump = (m, key, bad) => {
    const cell = m.cells.get(key) || m.cells.set(key, { count: 0, failed: 0 }).get(key);
    cell.count++;
    if (bad) cell.failed++;
  };
  for (const c of filter.shown.filter((c) => !(c.flags & PARTIAL))) {
    const m = methods.get(c.name) || methods.set(c.name, { name: c.name, count: 0, cells: new Map() }).get(c.name);
    m.count++;
    bump(m, `c${c.flags & OWN ? "criproxy itself" : c.client}`, failed(c));
    for (const l of c.legs) bump(m, `b${l.backend}`, l.code > 0);
    if (c.memory.length) bump(m, "memory", false);
  }
  const heads = [...clients.map((c) => [`c${c.name}`, c.name]), ...backs.map((b) => [`b${b.name}`, b.name || "primary"]), ["memory", "from cache"]];
  const list = [...methods.values()].sort((a, b) => b.count - a.count).slice(0, 40);
  const most = Math.max(1, ...list.map((m) => m.count));
  const cellOf = (cell, name) => {
    if (!cell) return el("td", { class: "num soft" }, "");
    const bar = el("i");
    bar.style.width = `${Math.max(3, 90 * Math.sqrt(cell.count / most))}px`;
    return el("td", { class: "num way", "data-of": name }, bar, el("span", {}, cell.failed ? el("span", { class: "bad" }, `${number(cell.failed)} failed of `) : "", number(cell.count)));
  };
  return el("table", { class: "wide ways" }, el("thead", {}, el("tr", {}, el("th", {}, "Method"), heads.map(([, name]) => el("th", { class: "num" }, name)))),
    el("tbody", {}, list.map((m) => el("tr", { onclick: () => setFilter("method", filter.values.method?.value === m.name ? "" : m.name) }, el("td", {}, m.name), heads.map(([key, name]) => cellOf(m.cells.get(key), name))))));
}
