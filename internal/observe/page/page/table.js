// The table of calls. Only the visible rows are in the document.

const table = { at: -1, high: 0, first: 0, sort: "", down: false, list: [], made: -1, opened: null };

// rowHeight is the height of a row: in narrow windows a call has several lines.
const rowHeight = () => parseInt(getComputedStyle(table.view).getPropertyValue("--row"), 10);

const HEADS = [["time", "Time"], ["client", "Client"], ["method", "Method"], ["backend", "Runtime"], ["about", "About"], ["took", "Took"], ["status", "Status"]];

function buildTable(view) {
  table.head = el("div", { class: "head", role: "row" }, HEADS.map(([name, label]) =>
    el("div", { role: "columnheader", class: name === "took" ? "num" : name }, ["time", "took"].includes(name)
      ? el("button", { type: "button", onclick: () => sortBy(name) }, label) : label)));
  table.body = el("div", { class: "body", role: "rowgroup" });
  table.none = el("div", { hidden: true });
  view.append(el("div", { role: "grid", "aria-label": "Calls", id: "grid" }, table.head, table.body), table.none);
  onScroll(view, () => {
    drawRows();
    const { top, high } = sightOf(view);
    if (live.on && live.follow && top + high < view.scrollHeight - 3 * table.high && !live.moving) setFollow(false);
    live.moving = false;
  });
  view.addEventListener("wheel", () => (state.back = 0), { passive: true });
  table.body.addEventListener("click", (e) => {
    const row = e.target.closest(".row");
    if (!row) return;
    moveTo(Number(row.dataset.i));
    if (table.list[table.at].older) return loadOlder();
    if (e.shiftKey || e.ctrlKey || e.metaKey) toggleSelected(table.list[table.at]);
    else openCall(table.list[table.at]);
  });
}

// withNotes puts what happened, and what is missing, between the calls.
function withNotes(calls) {
  const r = range();
  const happened = model.story.changes.filter((c) => c.t >= r.from - 60_000 && c.t <= r.to && (c.missing || about({ backends: c.backend ? [c.backend] : [] }, "backend"))).map((c) => ({ t: c.t, note: c.says, change: c }));
  const notes = [...missingOf(), ...happened].sort((a, b) => (a.t < b.t ? -1 : a.t > b.t ? 1 : 0));
  if (!notes.length || !model.calls.length) return calls;
  const all = [];
  let i = 0;
  for (const call of calls) {
    while (i < notes.length && notes[i].t <= call.began + call.took) all.push(notes[i++]);
    all.push(call);
  }
  return all.concat(notes.slice(i));
}

// nothing says why a view is empty, or that the calls are on their way.
function nothing(title, text) {
  const loading = live.on && !model.info.caughtUp && !model.calls.length;
  return el("div", { class: "empty" }, el("b", {}, loading ? "Loading calls" : title), loading ? $("link").dataset.lost : text);
}

function sortBy(name) {
  if (name === "time") table.sort = "";
  else [table.sort, table.down] = table.sort === name ? (table.down ? [name, false] : ["", false]) : [name, true];
  table.made = -1;
  drawTable();
}

function drawTable() {
  const current = table.list[table.at];
  if (table.made !== filter.version) {
    table.list = table.sort ? filter.shown.slice().sort((a, b) => (table.down ? b.took - a.took : a.took - b.took)) : withNotes(filter.shown);
    table.made = filter.version;
    const same = (one) => one === current || one.note && current.note && one.t === current.t; // notes are made anew
    if (current && table.list[table.at] !== current) table.at = table.list.findIndex(same);
    if (table.at >= table.list.length) table.at = -1;
  }
  table.head.querySelectorAll("[role=columnheader]").forEach((h) => h.removeAttribute("aria-sort"));
  if (table.sort) table.head.querySelector(".num").setAttribute("aria-sort", table.down ? "descending" : "ascending");
  if (!table.view.checkVisibility()) return; // an open call is in its place, and rows have no height
  const high = rowHeight();
  table.body.style.height = `${table.list.length * high}px`;
  if (table.first > 0 && table.high !== high) scrollView(table.view, table.first * high); // the window has another width
  table.high = high;
  $("grid").setAttribute("aria-rowcount", table.list.length + 1);
  const none = filter.shown.length === 0;
  $("grid").hidden = none;
  table.none.hidden = !none;
  if (none) table.none.replaceChildren(model.calls.length ? nothing(`None of ${plural(model.calls.length, "call")} matches`, `${[...filter.wrong.map((w) => `${w}.`), notLoaded()].join(" ")} Change a filter, or press Esc to clear them all.`)
    : live.on ? nothing("No calls yet", "They appear as they end.") : nothing("No calls are recorded here"));
  const top = state.back ? table.list.findIndex((one) => one.id === state.back) : -1;
  if (top >= 0) { // this page was here before it had older calls
    setFollow(false);
    scrollView(table.view, top * high);
    if (sightOf(table.view).top > (top - 1) * high) state.back = 0; // otherwise more rows below it must come first
  }
  if (live.on && live.follow && !table.sort) {
    live.moving = true;
    scrollView(table.view, table.view.scrollHeight);
  }
  drawRows();
}

function drawRows() {
  const { view, list } = table, sight = sightOf(view);
  table.first = sight.top / table.high;
  const first = Math.max(0, Math.floor(table.first) - 8);
  const last = Math.min(list.length, Math.ceil((sight.top + sight.high) / table.high) + 8);
  const rows = [];
  for (let i = first; i < last; i++) rows.push(rowOf(list[i], i));
  table.body.replaceChildren(...rows);
}

const cell = (name, ...content) => el("div", { class: name, role: "gridcell" }, content);

function rowAt(i, kind, attributes, ...cells) {
  const row = el("div", { class: `row ${kind}${i === table.at ? " at" : ""}`, role: "row", "data-i": i, "aria-rowindex": i + 2, ...attributes }, cells);
  row.style.top = `${i * table.high}px`;
  return row;
}

function noteOf({ t, note, change }, i) {
  const kind = change && !change.missing ? classOf(change.condition ? change.what : "up") : "missing";
  return rowAt(i, `said ${kind}`, { title: note }, cell("time", change && clock(t, 0)), cell("note", change?.condition && signOf(classOf(change.what)), note));
}

function rowOf(call, i) {
  if (call.note) return noteOf(call, i);
  const about = aboutOf(call), lack = lackOf(call);
  return rowAt(i, `${call.kind}${failed(call) ? " failed" : ""}`, { id: `r${call.key}`, "aria-selected": model.selected.has(call) ? "true" : "false" },
    cell("time", clock(call.began)), cell("client", call.client), cell("method", call.name), cell("backend", call.backend || "–"),
    cell("about", about.name, about.id && el("span", { class: "mono" }, about.id), !about.name && about.image && el("span", { class: "mono" }, about.image),
      about.items > 0 && el("span", { class: "soft" }, ` ${plural(about.items, "item")}`)),
    tookOf(call),
    cell("status", el("span", { class: call.code < 0 ? "soft" : "" }, statusOf(call)), failed(call) && call.message && el("span", { class: "soft" }, ` ${call.message}`), lack && chip("", `beginning ${lack}`),
      call.memory.length > 0 && chip("memory", "from cache"), call.changes > 0 && !call.memory.length && chip("rewritten", `${call.changes} rewritten`)));
}

// tookOf returns the duration of a call, with a bar on a logarithmic scale from 100 µs to 100 s.
function tookOf(call) {
  const bar = el("i");
  bar.style.width = `${Math.max(1, Math.min(44, ((Math.log10(Math.max(call.took, 0.1)) + 1) / 6) * 44))}%`;
  return cell(`took${slow(call) ? " slow" : ""}`, bar, el("span", {}, duration(call.took)));
}

function moveTo(i) {
  if (!table.list.length) return;
  table.at = Math.max(0, Math.min(table.list.length - 1, i));
  const top = table.at * table.high, end = top + 2 * table.high + 6, { view } = table, sight = sightOf(view);
  if (top < sight.top) scrollView(view, top);
  else if (end > sight.top + sight.high) scrollView(view, end - sight.high);
  if (live.on && live.follow && table.at < table.list.length - 1) setFollow(false);
  drawRows();
  view.setAttribute("aria-activedescendant", `r${table.list[table.at].key ?? ""}`);
  if (table.opened) openCall(table.list[table.at], true);
}

function toggleSelected(call) {
  if (!call || call.note) return;
  if (!model.selected.delete(call)) model.selected.add(call);
  redraw();
}
