// The filters, as in criproxy tail: internal/observe/calls/pattern.go says what patterns are, and which are refused, in the
// same words. Here, one without * ? [ or \ is found anywhere, except in the name of a code; others must match the whole text.

const FILTERS = [
  { name: "find", label: "Find", hint: narrow() ? "text" : "anything (/)", wide: true },
  { name: "method", label: "Method", hint: "Run*" },
  { name: "backend", label: "Runtime", hint: "any" },
  { name: "pod", label: "Pod", hint: "any" },
  { name: "client", label: "Client", hint: "any" },
  { name: "status", label: "Status", hint: "!OK" },
  { name: "slower", label: "Slower", hint: "100ms" },
];

// The chips beside the filters. Each is a filter that the commands have as well.
const CHIPS = [
  { name: "failed", label: "failed", filter: "status", value: "!OK,Canceled", title: "calls that failed" },
  { name: "slow", label: "slow", filter: "slower", value: "1s", title: "calls that took a second or longer" },
  { name: "memory", label: "from cache", title: "calls that criproxy answered from its cache, for a runtime that was late, slow or gone" },
];

const filter = { values: {}, tests: [], from: -Infinity, to: Infinity, own: false, memory: false, wrong: [], shown: [], seen: 0, version: 0, made: 0 };

// alternatives returns the single patterns, and whether what they match is left out.
function alternatives(text) {
  const not = text.startsWith("!");
  return { not, parts: text.slice(not ? 1 : 0).split(/[|,]/).map((p) => p.trim()).filter(Boolean) };
}

const wild = (pattern) => /[*?[\\]/.test(pattern);

// VALID matches the patterns of Go's path.Match.
const VALID = (() => {
  const one = String.raw`(?:[^\\\]-]|\\.)`, set = `(?:${one}(?:-${one})?)+`;
  return new RegExp(String.raw`^(?:[^\\[]|\\.|\[(?:\^${set}|(?!\^)${set})\])*$`, "s");
})();

// matcherOf returns a test of a text for one pattern.
function matcherOf(pattern, whole) {
  if (!wild(pattern)) {
    const low = pattern.toLowerCase();
    return whole ? (s) => s.toLowerCase() === low : (s) => s.toLowerCase().includes(low);
  }
  const literal = (c) => (/\w/.test(c) ? c : `\\${c}`);
  const source = pattern.replace(/\\(.)|\[((?:\\.|[^\]\\])+)\]|[.+^${}()|/*?]/gs, (c, escaped, set) =>
    set !== undefined ? `[${set.replace(/\\(.)/gs, (_, e) => literal(e))}]` : escaped !== undefined ? literal(escaped) : c === "*" ? ".*" : c === "?" ? "." : literal(c));
  const all = new RegExp(`^(?:${source})$`, "is");
  return (s) => all.test(s);
}

// patternOf returns a test for patterns. namesOf returns the texts of a call that one of them may match: a call without any
// is not selected. It throws if they are invalid, or select nothing.
function patternOf(text, namesOf, whole) {
  const { not, parts } = alternatives(text), more = "| or a comma separates several, and a leading ! selects all others";
  if (!parts.length) throw new Error(`invalid pattern ${JSON.stringify(text)}: want one such as web*; ${more}`);
  for (const p of parts) {
    if (!VALID.test(p)) throw new Error(`invalid pattern ${JSON.stringify(p)}: want letters, *, ? and [a-z]; ${more}`);
    if (not && /^\*+$/.test(p)) throw new Error(`${JSON.stringify(text)} selects nothing: * is any text, and a leading ! selects all others`);
  }
  const tests = parts.map((p) => [p, matcherOf(p, whole)]);
  return (c) => namesOf(c, "").some(Boolean) && tests.some(([p, fits]) => namesOf(c, p).some(fits)) !== not;
}

// methodNames returns the names of a method that a pattern may match.
function methodNames(method, pattern) {
  if (!pattern.includes("/")) return [method.slice(method.lastIndexOf("/") + 1)];
  const full = method.slice(1), service = full.slice(0, full.indexOf("/"));
  return [full.slice(service.lastIndexOf(".") + 1), full, method];
}

// KNOWN are the fields of which all values are known: a pattern that matches none of them is a mistake. names returns the
// names of one that a pattern may match.
const KNOWN = {
  method: { kind: "method of this API", all: () => [...new Set([...model.info.methods || [], ...model.methods])].sort(), names: methodNames },
  backend: { kind: "backend", all: () => backendsOf().sort() },
  status: { kind: "code", all: () => CODES.flatMap((_, code) => codeNames(code)), whole: true },
};

// unmatched says which of the patterns of a field matches nothing, or that they leave out everything. It is undefined while
// the values are not known yet.
function unmatched(field, text) {
  const { kind, all, names = (one) => [one], whole } = KNOWN[field], patterns = field === "status" ? text.replaceAll("_", "") : text;
  const { not, parts } = alternatives(patterns), known = all();
  if (!known.length) return undefined;
  const tests = parts.map((p) => [p, matcherOf(p, whole)]);
  for (const [p, fits] of tests) {
    const own = known.flatMap((one) => names(one, p));
    if (!own.some(fits)) return `${JSON.stringify(p)} matches no ${kind}${nearest(p, own) || (own.length <= 20 ? `; want ${own.join(", ")}` : "")}`;
  }
  if (not && known.every((one) => tests.some(([p, fits]) => names(one, p).some(fits)))) return `${JSON.stringify(patterns)} selects nothing: it names every ${kind}, and a leading ! selects all others`;
  return "";
}

// nearest proposes the name that was probably meant, as internal/base/suggest does.
function nearest(name, names) {
  let best = "", most = Math.min(1 + Math.floor(name.length / 3), Math.floor(name.length / 2));
  for (const n of names) {
    const d = distance(name, n);
    if (d <= most && (!best || d < most)) [best, most] = [n, d];
  }
  if (!best) for (const n of names) if (name.startsWith(n) && !/^[a-z]/.test(name.slice(n.length)) && n.length > best.length) best = n;
  return best && ` (did you mean "${best}"?)`;
}

// distance returns how many letters must be inserted, deleted or exchanged to get from a to b.
function distance(a, b) {
  const row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 0; i < a.length; i++) {
    let diagonal = row[0]++;
    for (let j = 0; j < b.length; j++) {
      const d = Math.min(row[j] + 1, row[j + 1] + 1, diagonal + (a[i] === b[j] ? 0 : 1));
      diagonal = row[j + 1];
      row[j + 1] = d;
    }
  }
  return row[b.length];
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

// codeNames are the spellings of a code.
const codeNames = (code) => (code === CANCELED ? [CODES[code], "Cancelled"] : [CODES[code] || `Code(${code})`]);

const TESTS = {
  find: (v) => {
    const words = v.toLowerCase().split(/\s+/).filter(Boolean);
    return (c) => {
      const text = haystack(c);
      return words.every((w) => text.includes(w));
    };
  },
  method: (v) => patternOf(v, (c, p) => methodNames(c.method, p)),
  backend: (v) => patternOf(v, (c) => c.backends),
  pod: (v) => patternOf(v, (c, p) => [p.includes("/") ? podOf(c) : c.pod]),
  client: (v) => patternOf(v, (c) => [c.client]),
  status: (v) => {
    const test = patternOf(v.replaceAll("_", ""), codeNames, true), selected = []; // :: code → whether it is
    return (c) => ended(c) && (selected[c.code === LEFT ? CANCELED : c.code] ??= test(c.code === LEFT ? CANCELED : c.code));
  },
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
    if (f.wide) form.append(el("button", { type: "button", id: "more", "aria-expanded": "false", onclick: (e) => e.currentTarget.setAttribute("aria-expanded", String(form.classList.toggle("all"))) }, "Filters"));
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

// VALUES are the values of a call for fields that offer some.
const VALUES = { method: (c) => [c.name], backend: (c) => c.backends, pod: (c) => [c.pod], client: (c) => [c.client], status: (c) => [c.code >= 0 && statusOf(c)] };

// complete offers the values that occur.
function complete(name) {
  const values = new Map();
  for (const v of VALUES[name] ? model.calls.flatMap(VALUES[name]) : []) if (v) values.set(v, (values.get(v) || 0) + 1);
  const best = [...values].sort((a, b) => b[1] - a[1]).slice(0, 60).map(([v]) => el("option", { value: v }));
  $(`list-${name}`).replaceChildren(...best);
}

const fieldOf = (name) => document.querySelector(`#filters input[name=${name}]`);

function setFilter(name, value) {
  const input = fieldOf(name);
  if (input.value !== value) input.value = value;
  const set = { value: value.trim() };
  try {
    set.test = set.value ? TESTS[name](set.value) : undefined;
  } catch (e) {
    set.refused = e.message;
  }
  input.parentElement.classList.toggle("on", Boolean(set.test));
  if (set.value) filter.values[name] = set;
  else delete filter.values[name];
  refilter();
}

// check says what is wrong with the fields, as a command would refuse them, and marks them. A name may become known later.
function check() {
  filter.wrong = [];
  for (const { name } of FILTERS) {
    const set = filter.values[name], label = fieldOf(name).parentElement;
    if (set && name in KNOWN && !set.refused && set.unmatched !== "") set.unmatched = unmatched(name, set.value);
    const wrong = set?.refused || set?.unmatched || "";
    label.classList.toggle("wrong", Boolean(wrong));
    label.title = wrong;
    if (wrong) filter.wrong.push(wrong);
  }
}

// setFlag sets own or memory.
function setFlag(name, on) {
  filter[name] = on;
  fieldOf("own").checked = filter.own;
  facts();
  refilter();
}

function clearFilters() {
  filter.memory = false;
  filter.from = -Infinity;
  filter.to = Infinity;
  for (const f of FILTERS) if (fieldOf(f.name).value) setFilter(f.name, "");
  refilter();
}

function setTimes(from, to) {
  filter.from = from;
  filter.to = to;
  refilter();
}

// passes says whether the filters select a call. A field that is refused selects none.
function passes(call) {
  if (filter.wrong.length) return false;
  if (call.flags & OWN && !filter.own) return false;
  if (filter.memory && !call.memory.length) return false;
  if (call.began > filter.to || call.began + call.took < filter.from) return false;
  for (const test of filter.tests) if (!test(call)) return false;
  return true;
}

// refilter filters all calls again; more filters only the new ones.
function refilter() {
  check();
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
  const were = filter.wrong.length;
  check();
  if (filter.dropped !== model.dropped || model.changed || filter.wrong.length !== were) return refilter();
  for (; filter.seen < model.calls.length; filter.seen++) {
    const call = model.calls[filter.seen];
    if (passes(call)) filter.shown.push(call);
  }
  filter.version++;
  redraw();
}

// about says whether the filters select a runtime or a pod, and nothing that only calls have.
const about = (one, ...names) => !filter.memory && !filter.wrong.length && Object.entries(filter.values).every(([name, f]) => names.includes(name) && f.test(one));

// range returns the selected time.
const range = () => ({ from: Math.max(filter.from, model.from), to: Math.max(Math.min(filter.to, model.to), Math.max(filter.from, model.from) + 1) });

// command returns the command that prints the same calls on a terminal.
function command() {
  const words = ["criproxy", live.on ? "tail -past" : "view"];
  for (const f of FILTERS) {
    const set = filter.values[f.name];
    if (!set) continue;
    let v = set.value;
    if (["method", "backend", "pod", "client"].includes(f.name)) {
      const { not, parts } = alternatives(v), first = filter.shown[0];
      const exact = (p) => !not && first && (VALUES[f.name](first).includes(p) || f.name === "pod" && podOf(first) === p);
      v = (not ? "!" : "") + parts.map((p) => (wild(p) || exact(p) ? p : `*${p}*`)).join("|");
    }
    if (f.name === "slower" && /^[\d.]+$/.test(v)) v += "ms";
    words.push(`-${f.name} ${quoted(v)}`);
  }
  for (const flag of ["memory", "own"]) if (filter[flag]) words.push(`-${flag}`);
  words.push(live.on ? `-admin ${quoted(model.info.title)}` : quoted(model.info.title));
  return words.join(" ");
}
