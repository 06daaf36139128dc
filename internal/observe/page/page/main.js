// The page: views, keys, and what begins it.

const VIEWS = [
  { name: "calls", label: "Calls", of: table, build: buildTable, draw: drawTable },
  { name: "pods", label: "Pods", of: pods, build: buildPods, draw: drawPods },
  { name: "latency", label: "Latency", of: latency, draw: drawLatency },
  { name: "talk", label: "Who talks to whom", of: talk, draw: drawTalk },
  { name: "sequence", label: "Sequence", of: sequence, draw: drawSequence },
  { name: "status", label: "Status", of: status, draw: drawStatus },
  { name: "findings", label: "Findings", of: findings, draw: drawFindings },
];
let current = "calls";

function buildViews() {
  for (const v of VIEWS) {
    const view = el("div", { class: "view", id: `view-${v.name}`, role: "tabpanel", "aria-labelledby": `tab-${v.name}`, tabindex: 0, hidden: v.name !== current });
    $("views").append(view);
    v.of.view = view;
    v.build?.(view);
    $("tabs").append(el("button", { type: "button", role: "tab", id: `tab-${v.name}`, "aria-controls": `view-${v.name}`, "aria-selected": v.name === current ? "true" : "false", onclick: () => showView(v.name) }, v.label, el("span", { class: "count" })));
  }
  $("tabs").append(el("span", { class: "command mono", title: "the same calls on a terminal" }), copyButton("Copy", command, "copy the command"));
}

// showView shows a view, and closes a call that covers the views.
function showView(name) {
  const again = name === current, covered = !$("views").checkVisibility();
  if (covered) closeCall();
  current = name;
  state.viewed = true;
  for (const v of VIEWS) {
    $(`view-${v.name}`).hidden = v.name !== name;
    $(`tab-${v.name}`).setAttribute("aria-selected", v.name === name ? "true" : "false");
  }
  if (sightOf($("views")).top > 0 && !(covered && again)) scrollView($("views"), 0);
  focusView();
  redraw();
}

const focusView = () => $(`view-${current}`).focus({ preventScroll: true });

let drawing = false;

// redraw draws the visible view, once for all changes before the next frame.
function redraw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    drawStrip();
    drawOlder();
    drawOverview();
    $("tab-calls").querySelector(".count").textContent = filter.shown.length === totals().calls ? number(filter.shown.length) : `${number(filter.shown.length)} of ${number(totals().calls)}`;
    $("tab-findings").querySelector(".count").textContent = presentFindings().length || "";
    $("tab-sequence").querySelector(".count").textContent = model.selected.size ? `${model.selected.size} selected` : "";
    $("tabs").querySelector(".command").textContent = model.calls.length ? command() : "";
    VIEWS.find((v) => v.name === current).draw();
    document.body.dataset.drawn = filter.version;
    saveState();
  });
}

// totals count all calls; those of criproxy itself only when they are shown. They look only at calls that are new, unless
// earlier ones have changed or gone.
function totals() {
  if (totals.version === model.version && totals.with === filter.own) return totals.counted;
  const fresh = !totals.counted || model.changed || totals.made !== filter.made || totals.dropped !== model.dropped || totals.with !== filter.own;
  const counted = fresh ? { calls: 0, bad: 0, own: false } : totals.counted;
  for (let i = fresh ? 0 : totals.seen; i < model.calls.length; i++) {
    const c = model.calls[i];
    if (c.flags & OWN) counted.own = true;
    if (c.flags & OWN && !filter.own) continue;
    counted.calls++;
    if (failed(c)) counted.bad++;
  }
  Object.assign(totals, { version: model.version, with: filter.own, made: filter.made, dropped: model.dropped, seen: model.calls.length, counted });
  return counted;
}

function facts() {
  const { info } = model;
  document.title = `${info.title} · criproxy`;
  $("title").textContent = info.title + (info.filter ? `, ${info.filter}` : "");
  $("title").title = [info.program, info.listen].filter(Boolean).join(", ");
  const { calls, bad, own } = totals();
  $("own").hidden = !own;
  const parts = [live.on && !info.caughtUp && !calls ? "loading calls" : el("span", {}, el("b", {}, number(calls)), calls === 1 ? " call" : " calls")];
  if (bad) parts.push(" · ", el("span", { class: "bad" }, el("b", {}, number(bad)), " failed"));
  if (model.calls.length) parts.push(` · ${day(model.from)} ${clock(model.from, 0)} – ${clock(model.to, 0)}`);
  $("facts").replaceChildren(...parts);
}

const KEYS = [
  ["j k", "next and previous call"], ["g G", "first and last call"], ["Enter", "open a call"], ["Esc", "close it, or clear the filters"], ["/", "find"],
  ["x", "select a call for the sequence diagram"], ["w", "the open call as wide as the page"], ["1 … 7", "another view"], ["t", "light or dark"], ["f", "follow the newest call"], ["?", "these keys"],
];

function showKeys() {
  const box = $("help");
  box.replaceChildren(el("h2", {}, "Keys"), el("dl", {}, KEYS.map(([k, what]) => [el("dt", {}, k.split(" ").map((one) => [el("kbd", {}, one), " "])), el("dd", {}, what)])),
    el("p", {}, "Filters work like the flags of criproxy view: they take patterns with * ? and [a-z], separated by |. A word without these is found anywhere; Status takes whole names. Drag over the chart above to select a time; click it to clear the selection."),
    el("p", {}, el("button", { type: "button", onclick: () => box.close() }, "Close")));
  box.showModal();
}

function onKey(e) {
  const typing = e.target.matches("input[type=text]");
  if (e.key === "Escape") {
    if ($("help").open) return;
    if (typing) {
      e.target.blur();
      focusView();
    } else if (!$("detail").hidden) closeCall();
    else clearFilters();
    return;
  }
  if (typing && e.key === "Enter") return focusView();
  if (typing || e.ctrlKey || e.metaKey || e.altKey || $("help").open) return;
  const page = Math.max(1, Math.floor(sightOf(table.view).high / table.high) - 2);
  const moves = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: page, PageUp: -page, g: -Infinity, Home: -Infinity, G: Infinity, End: Infinity };
  if (e.key in moves && current === "calls") moveTo(table.at < 0 ? (moves[e.key] === Infinity ? Infinity : 0) : table.at + moves[e.key]);
  else if (e.key === "Enter" && current === "calls" && table.list[table.at]?.older) loadOlder();
  else if (e.key === "Enter" && current === "calls" && !e.target.closest("button, [role=button]")) openCall(table.list[Math.max(0, table.at)]);
  else if (e.key === "/") document.querySelector("#filters input").focus();
  else if (e.key === "x") toggleSelected(table.opened || table.list[table.at]);
  else if (e.key === "w" && table.opened) widen();
  else if (e.key === "t") theme();
  else if (e.key === "f" && live.on) setFollow(!live.follow);
  else if (e.key === "?") showKeys();
  else if (VIEWS[Number(e.key) - 1]) showView(VIEWS[Number(e.key) - 1].name);
  else return;
  e.preventDefault();
}

async function begin() {
  buildFilters();
  buildOverview();
  buildViews();
  $("theme").addEventListener("click", theme);
  $("keys").addEventListener("click", showKeys);
  $("older").addEventListener("click", loadOlder);
  $("follow").addEventListener("click", () => setFollow(!live.follow));
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", loadState);
  const sizes = new ResizeObserver(() => {
    document.body.style.setProperty("--tabs", `${$("tabs").offsetHeight}px`);
    redraw();
  });
  sizes.observe($("views"));
  sizes.observe($("tabs"));
  focusView();
  const info = $("info");
  if (!info) {
    live.on = true;
    loadState();
    connectLive();
    return;
  }
  model.info = await unpack(info);
  takeStory(await unpack($("story")));
  if ($("wrong")) findings.report = await unpack($("wrong"));
  for (let n = 0, block; (block = $(`rows-${n}`)); n++) {
    ingest(await unpack(block));
    block.remove();
  }
  facts();
  loadState();
  document.body.dataset.ready = "true";
}

begin().catch((e) => {
  $("facts").replaceChildren(el("span", { class: "bad" }, `This page cannot be shown: ${e.message}`));
  throw e;
});
