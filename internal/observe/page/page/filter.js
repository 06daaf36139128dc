// The filters, as in criproxy tail: internal/observe/calls/pattern.go says what patterns are. Here, one without * ? or [
// is found anywhere; others must match the whole text.

const FILTERS = [
  { name: "find", label: "Find", hint: "anything (/)", wide: true },
  { name: "method", label: "Method", hint: "Run*" },
  { name: "backend", label: "Runtime", hint: "any" },
  { name: "pod", label: "Pod", hint: "any", flag: "pod" },
  { name: "client", label: "Client", hint: "any" },
  { name: "status", label: "Status", hint: "!OK" },
  { name: "slower", label: "Slower", hint: "100ms" },
];

// The chips beside the filters. Each is a filter that the commands have as well.
const CHIPS = [
  { name: "failed", label: "failed", filter: "status", value: "!OK,Canceled", title: "calls that failed" },
  { name: "slow", label: "slow", filter: "slower", value: "1s", title: "calls that took a second or longer" },
  { name: "memory", label: "from memory", title: "calls that criproxy answered from memory, for a runtime that was slow or gone" },
];

const filter = { values: {}, tests: [], from: -Infinity, to: Infinity, own: false, memory: false, shown: [], seen: 0, version: 0, made: 0 };

// alternatives returns the single patterns, and whether what they match is left out.
function alternatives(text) {
  const not = text.startsWith("!");
  return { not, parts: text.slice(not ? 1 : 0).split(/[|,]/).map((p) => p.trim()).filter(Boolean) };
}

// patternOf returns a test for patterns. namesOf returns the texts of a call that one of them may match.
function patternOf(text, namesOf) {
  const { not, parts } = alternatives(text);
  const tests = parts.map((p) => {
    if (!/[*?[]/.test(p)) {
      const low = p.toLowerCase();
      return (c) => namesOf(c, p).some((s) => s.toLowerCase().includes(low));
    }
    const source = p.replace(/\[([^\]]*)\]|[.+^${}()|\\/*?[\]]/g, (c, set) =>
      set !== undefined ? `[${set.replace(/\\/g, "\\\\")}]` : c === "*" ? ".*" : c === "?" ? "." : `\\${c}`);
    const whole = new RegExp(`^(?:${source})$`, "is");
    return (c) => namesOf(c, p).some((s) => whole.test(s));
  });
  return (c) => tests.some((t) => t(c)) !== not;
}

// methodNames returns the names of a call's method that a pattern may match.
function methodNames(c, pattern) {
  if (!pattern.includes("/")) return [c.name];
  const full = c.method.slice(1), service = full.slice(0, full.indexOf("/"));
  return [full.slice(service.lastIndexOf(".") + 1), full, c.method];
}

// millisecondsOf parses a duration in Go's format. It throws if the text is invalid.
function millisecondsOf(text) {
  const units = { ns: 1e-6, us: 1e-3, µs: 1e-3, ms: 1, s: 1e3, m: 6e4, h: 36e5 };
  let sum = 0, rest = text.trim();
  if (/^[\d.]+$/.test(rest)) rest += "ms";
  while (rest) {
    const found = /^([\d.]+)\s*(ns|us|µs|ms|s|m|h)\s*/.exec(rest);
    if (!found) throw new Error(`${text} is not a time: want one such as 100ms or 2s`);
    sum += found[1] * units[found[2]];
    rest = rest.slice(found[0].length);
  }
  return sum;
}

function statusTest(text) {
  const { not, parts: names } = alternatives(text.toLowerCase().replace(/_/g, "").replace("cancelled", "canceled"));
  const known = CODES.map((c) => c.toLowerCase());
  const codes = names.flatMap((n) => known.map((k, i) => (k === n || (!known.includes(n) && k.startsWith(n)) ? i : -1)).filter((i) => i >= 0));
  if (names.length && !codes.length) throw new Error(`${text} is not a code: want one such as NotFound, several separated by commas, or ! before`);
  return (call) => ended(call) && codes.includes(call.code === LEFT ? CANCELED : call.code) !== not;
}

const TESTS = {
  find: (v) => {
    const words = v.toLowerCase().split(/\s+/).filter(Boolean);
    return (c) => {
      const text = haystack(c);
      return words.every((w) => text.includes(w));
    };
  },
  method: (v) => patternOf(v, methodNames),
  backend: (v) => patternOf(v, (c) => c.backends),
  pod: (v) => ((p) => (c) => c.pod !== "" && (p(c) || c.uid === v))(patternOf(v, (c) => [c.pod, podOf(c)])),
  client: (v) => patternOf(v, (c) => [c.client]),
  status: statusTest,
  slower: (v) => ((ms) => (c) => c.took >= ms)(millisecondsOf(v)),
};

const haystack = (c) => `${c.name} ${c.client} ${c.backend} ${c.namespace}/${c.pod}/${c.container} ${c.uid} ${c.ids} ${c.image} ${statusOf(c)} ${c.message}`.toLowerCase();

function buildFilters() {
  const form = $("filters");
  for (const f of FILTERS) {
    const input = el("input", { type: "text", name: f.name, placeholder: f.hint, spellcheck: "false", "aria-label": f.label, list: `list-${f.name}` });
    input.addEventListener("input", () => setFilter(f.name, input.value));
    form.append(el("label", { class: f.wide ? "wide" : "" }, el("span", {}, f.label), input), el("datalist", { id: `list-${f.name}` }));
    input.addEventListener("focus", () => complete(f.name));
  }
  form.append(el("span", { class: "chips", role: "group", "aria-label": "Only" }, CHIPS.map((c) => el("button", { type: "button", id: `only-${c.name}`, title: c.title, "aria-pressed": "false", onclick: () => {
    if (c.filter) setFilter(c.filter, filter.values[c.filter]?.value === c.value ? "" : c.value);
    else setFlag(c.name, !filter[c.name]);
  } }, c.label))));
  const own = el("input", { type: "checkbox", name: "own" });
  own.addEventListener("change", () => setFlag("own", own.checked));
  form.append(el("label", { class: "check", id: "own", title: "calls that criproxy makes itself", hidden: true }, own, el("span", {}, "own calls")));
  form.append(el("button", { type: "button", id: "clear", hidden: true, onclick: clearFilters }, "Clear"));
  form.addEventListener("submit", (e) => e.preventDefault());
}

// complete offers the values that occur.
function complete(name) {
  const values = new Map();
  const add = (v) => v && values.set(v, (values.get(v) || 0) + 1);
  for (const c of model.calls) {
    if (name === "method") add(c.name);
    else if (name === "backend") c.backends.forEach(add);
    else if (name === "pod") add(c.pod);
    else if (name === "client") add(c.client);
    else if (name === "status") add(c.code >= 0 ? statusOf(c) : "");
  }
  const best = [...values].sort((a, b) => b[1] - a[1]).slice(0, 60).map(([v]) => el("option", { value: v }));
  $(`list-${name}`).replaceChildren(...best);
}

function setFilter(name, value) {
  const input = document.querySelector(`#filters input[name=${name}]`);
  if (input.value !== value) input.value = value;
  const label = input.parentElement;
  let test;
  try {
    test = value.trim() ? TESTS[name](value.trim()) : undefined;
    label.classList.remove("wrong");
    label.title = "";
  } catch (e) {
    label.classList.add("wrong");
    label.title = e.message;
  }
  label.classList.toggle("on", Boolean(test));
  if (test) filter.values[name] = { value: value.trim(), test };
  else delete filter.values[name];
  refilter();
}

// setFlag sets own or memory.
function setFlag(name, on) {
  filter[name] = on;
  document.querySelector("#filters input[name=own]").checked = filter.own;
  facts();
  refilter();
}

function clearFilters() {
  filter.memory = false;
  filter.from = -Infinity;
  filter.to = Infinity;
  for (const f of FILTERS) if (document.querySelector(`#filters input[name=${f.name}]`).value) setFilter(f.name, "");
  refilter();
}

function setTimes(from, to) {
  filter.from = from;
  filter.to = to;
  refilter();
}

function passes(call) {
  if (call.flags & OWN && !filter.own) return false;
  if (filter.memory && !call.memory.length) return false;
  if (call.began > filter.to || call.began + call.took < filter.from) return false;
  for (const test of filter.tests) if (!test(call)) return false;
  return true;
}

// refilter filters all calls again; more filters only the new ones.
function refilter() {
  filter.tests = Object.values(filter.values).map((f) => f.test);
  filter.shown = model.calls.filter(passes);
  filter.seen = model.calls.length;
  filter.dropped = model.dropped;
  model.changed = false;
  filter.version++;
  filter.made++; // how often all calls were filtered
  for (const c of CHIPS) $(`only-${c.name}`).setAttribute("aria-pressed", String(c.filter ? filter.values[c.filter]?.value === c.value : filter[c.name]));
  $("clear").hidden = !filter.tests.length && !filter.memory && filter.from === -Infinity && filter.to === Infinity;
  redraw();
}

function more() {
  if (filter.dropped !== model.dropped || model.changed) return refilter();
  for (; filter.seen < model.calls.length; filter.seen++) {
    const call = model.calls[filter.seen];
    if (passes(call)) filter.shown.push(call);
  }
  filter.version++;
  redraw();
}

// about says whether the filters select a runtime or a pod, and nothing that only calls have.
const about = (one, ...names) => !filter.memory && Object.entries(filter.values).every(([name, f]) => names.includes(name) && f.test(one));

// range returns the selected time.
const range = () => ({ from: Math.max(filter.from, model.from), to: Math.max(Math.min(filter.to, model.to), Math.max(filter.from, model.from) + 1) });

// command returns the command that prints the same calls on a terminal.
function command() {
  const words = ["criproxy", model.info.live ? "tail -past" : "view"];
  for (const f of FILTERS) {
    const set = filter.values[f.name];
    if (!set) continue;
    let v = set.value;
    if (["method", "backend", "pod", "client"].includes(f.name)) {
      const { not, parts } = alternatives(v);
      v = (not ? "!" : "") + parts.map((p) => (/[*?[]/.test(p) || !not && exact(f.name, p) ? p : `*${p}*`)).join("|");
    }
    if (f.name === "slower" && /^[\d.]+$/.test(v)) v += "ms";
    words.push(`-${f.name} ${quoted(v)}`);
  }
  for (const flag of ["memory", "own"]) if (filter[flag]) words.push(`-${flag}`);
  words.push(model.info.live ? `-admin ${quoted(model.info.title)}` : quoted(model.info.title));
  return words.join(" ");
}

function exact(name, value) {
  const of = { method: (c) => c.name === value, backend: (c) => c.backends.includes(value), pod: (c) => c.pod === value, client: (c) => c.client === value };
  return filter.shown.length > 0 && of[name](filter.shown[0]);
}
