// The state of the page in its address: page, filters, times and the open call. So it survives a reload, and can be linked.

const state = { wanted: 0, top: 0, back: 0, viewed: false, loaded: false };

// save writes the state into the address.
function saveState() {
  if (!state.loaded) return; // the address has not been read yet
  const p = new URLSearchParams();
  const set = (name, value) => value && p.set(name, value);
  set("view", state.viewed && current);
  for (const f of FILTERS) set(f.name, filter.values[f.name]?.value);
  for (const flag of ["memory", "own"]) set(flag, filter[flag] && "1");
  set("from", filter.from > -Infinity && Math.round(filter.from));
  set("to", filter.to < Infinity && Math.round(filter.to));
  set("sort", table.sort && (table.down ? "slowest" : "fastest"));
  set("top", state.top || state.back);
  set("call", state.wanted || table.opened?.id);
  const hash = p.size ? `#${p}` : "";
  if (hash !== location.hash) history.replaceState(null, "", hash || location.pathname + location.search);
}

// loadState takes the state from the address.
function loadState() {
  state.loaded = true;
  const p = new URLSearchParams(location.hash.slice(1));
  for (const f of FILTERS) if ((filter.values[f.name]?.value || "") !== (p.get(f.name) || "")) setFilter(f.name, p.get(f.name) || "");
  for (const flag of ["memory", "own"]) if (filter[flag] !== p.has(flag)) setFlag(flag, p.has(flag));
  setTimes(Number(p.get("from")) || -Infinity, Number(p.get("to")) || Infinity);
  [table.sort, table.down] = p.has("sort") ? ["took", p.get("sort") === "slowest"] : ["", false];
  const view = VIEWS.find((v) => v.name === p.get("view"));
  if (view) showView(view.name);
  state.wanted = Number(p.get("call")) || 0;
  state.back = Number(p.get("top")) || 0;
  if (!state.wanted && table.opened) closeCall();
  openWanted();
}

// openWanted opens the call of the address, when it is there.
function openWanted() {
  if (!state.wanted || table.opened?.id === state.wanted) return;
  const call = model.calls.findLast((c) => c.id === state.wanted);
  if (!call) return;
  state.wanted = 0;
  openCall(call);
  const at = table.list.indexOf(call);
  if (at >= 0) moveTo(at);
}
