// The model: reads calls from the page or the server, and interprets them.

const OWN = 1, PARTIAL = 2, STREAM = 4; // flags of a row
const UNDER_WAY = -1, LOST = -2, LEFT = -3; // LEFT is Canceled because the client ended the call, which is no failure
const CODES = ["OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists", "PermissionDenied",
  "ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable", "DataLoss", "Unauthenticated"];
const CANCELED = 1, UNAVAILABLE = 14;

// The columns of a row, as batch.go writes them. The numbers in TEXT columns are indexes in the batch's list of
// strings.
const COLUMNS = ["key", "id", "began", "took", "method", "client", "pid", "code", "message", "namespace", "pod", "uid", "container", "image", "ids",
  "items", "bytesIn", "bytesOut", "flags", "changes", "legs", "memory", "node", "backends"];
const TEXT = new Set(["method", "client", "message", "namespace", "pod", "uid", "container", "image", "ids", "node"]);

const model = {
  info: { backends: [] },
  methods: new Set(),
  calls: [],          // in the order in which they ended
  open: new Map(),    // :: key → call that is under way
  homes: new Map(),   // :: node and uid of a pod → its runtime
  from: Infinity, to: -Infinity,
  first: Infinity,    // number of the first call of which the page has the beginning
  version: 0,         // counts changes
  changed: false,     // a call that was there already is another
  dropped: 0,         // calls that were forgotten, to bound memory
  unread: new Map(),  // :: key → call of which it is not known yet what was rewritten
  missing: 0,         // calls that criproxy ui had forgotten when this page asked for them
  story: { known: false, changes: [], pods: [], counts: {}, gaps: [] },
  bands: [],          // times in which a runtime was not up
  states: new Map(),  // :: runtime → its latest change
  plugins: new Map(), // :: plugin → its latest change
  selected: new Set(),
};

// A live page keeps only the latest calls.
const MOST = 100_000, FEWER = 90_000;

function callOf(row, strings) {
  const call = {};
  for (let i = 0; i < COLUMNS.length; i++) call[COLUMNS[i]] = TEXT.has(COLUMNS[i]) ? strings[row[i]] : row[i];
  call.took /= 1000;
  const legs = [];
  for (let i = 0; i < call.legs.length; i += 5) {
    legs.push({ backend: strings[call.legs[i]], began: call.legs[i + 1] / 1000, took: call.legs[i + 2] / 1000, code: call.legs[i + 3], memory: call.legs[i + 4] === 1 });
  }
  call.legs = legs;
  call.memory = call.memory.map((i) => strings[i]);
  call.name = call.method.slice(call.method.lastIndexOf("/") + 1);
  call.backends = call.backends.map((i) => strings[i]);
  call.backend = call.backends.join(", ");
  call.kind = kindOf(call.name);
  return call;
}

// ingest adds a batch of rows.
function ingest(batch) {
  model.missing += batch.m || 0;
  for (const row of batch.r) {
    let call = callOf(row, batch.s);
    if (call.uid && call.backends.length === 1) settle(call.node + call.uid, call.backends[0]);
    const old = model.open.get(call.key);
    if (old) {
      call = Object.assign(old, call);
      model.changed = true;
      if (call.code !== UNDER_WAY) model.open.delete(call.key);
    } else {
      model.calls.push(call);
      if (call.code === UNDER_WAY) model.open.set(call.key, call);
    }
    if (call.changes < 0) model.unread.set(call.key, call);
    if (!(call.flags & PARTIAL)) model.first = Math.min(model.first, call.id);
    model.methods.add(call.method);
    model.from = Math.min(model.from, call.began);
    model.to = Math.max(model.to, call.began + call.took);
  }
  if (model.calls.length) model.to = Math.max(model.to, model.story.changes.at(-1)?.t || 0);
  if (live.on && model.calls.length > MOST) {
    const gone = model.calls.splice(0, model.calls.length - FEWER);
    model.dropped += gone.length;
    for (const call of gone) {
      model.open.delete(call.key);
      model.unread.delete(call.key);
      model.selected.delete(call);
    }
    model.from = model.calls.reduce((least, c) => Math.min(least, c.began), Infinity);
  }
  model.version++;
}

// settle notes which runtime a pod is on.
function settle(pod, backend) {
  if (model.homes.size > 10_000) model.homes.clear();
  model.homes.set(pod, backend);
}

// takeRewritten takes how many fields were rewritten in each of some calls.
function takeRewritten({ k, n }) {
  k?.forEach((key, i) => {
    const call = model.unread.get(key);
    if (call) call.changes = n[i];
    model.unread.delete(key);
  });
}

// kindOf returns the kind of a method of CRI: what it does to a pod.
function kindOf(name) {
  switch (name) {
    case "RunPodSandbox": case "UpdatePodSandboxResources": return "sandbox";
    case "PullImage": return "pull";
    case "CreateContainer": case "StartContainer": return "run";
    case "ExecSync": case "Exec": case "Attach": case "PortForward": return "probe";
    case "StopContainer": case "RemoveContainer": case "StopPodSandbox": case "RemovePodSandbox": case "RemoveImage": return "stop";
  }
  return "poll";
}

const failed = (call) => call.code > 0;
const ended = (call) => call.code >= 0 || call.code === LEFT;

// SLOW says after how many milliseconds a call of a kind is marked as slow. Streams and calls that run commands in a container
// are never marked.
const SLOW = { sandbox: 5000, pull: 60_000, run: 2000, probe: Infinity, stop: Infinity, poll: 1000 };
const slow = (call, took = call.took) => !(call.flags & STREAM) && call.code >= 0 && took >= SLOW[call.kind] && !/^(GetContainerEvents|Stream)/.test(call.name);

function statusOf(call) {
  if (call.code === UNDER_WAY) return "under way";
  if (call.code === LOST) return "end not recorded";
  if (call.code === LEFT) return "Canceled by the client";
  return CODES[call.code] || `Code(${call.code})`;
}

const keyOf = (pod) => (pod.node || "") + (pod.uid || podOf(pod));

const podOf = (call) => (call.pod ? `${call.namespace ? `${call.namespace}/` : ""}${call.pod}` : "");

// aboutOf returns the subject of a call: pod and container, an id or an image.
function aboutOf(call) {
  const name = [podOf(call), call.container].filter(Boolean).join("/");
  const id = call.ids && shortID(call.ids.split(" ")[0]);
  return { name, id: id || "", image: call.container ? "" : shortID(call.image), items: call.items };
}

const backendsOf = () => {
  const names = (model.info.backends || []).map((b) => b.name);
  for (const call of model.calls) for (const name of call.backends) if (!names.includes(name)) names.push(name);
  return names;
};

// takeStory takes what happened besides the calls.
function takeStory(story) {
  for (const c of story.changes) Object.assign(c, { t: Date.parse(c.time), was: c.was || "", since: Date.parse(c.since) });
  for (const p of story.pods) if (p.uid && p.backend) settle((p.node || "") + p.uid, p.backend);
  model.story = story;
  model.bands = [];
  model.states = new Map();
  model.plugins = new Map();
  for (const c of story.changes.filter((c) => c.plugin)) {
    if (c.what === "removed") model.plugins.delete(c.plugin);
    else model.plugins.set(c.plugin, c);
  }
  for (const c of story.changes.filter((c) => c.condition)) {
    const before = model.states.get(c.backend);
    if (before?.what === c.what && c.what !== "up") continue; // a process that began later does not know whether it was up meanwhile
    if (before) before.to = c.t;
    else if (c.was && c.since) model.bands.push({ backend: c.backend, what: c.was, from: c.since, to: c.t });
    const band = { ...c, from: c.t, to: Infinity };
    model.bands.push(band);
    if (c.what === "removed") model.states.delete(c.backend);
    else model.states.set(c.backend, band);
  }
  model.bands = model.bands.filter((b) => b.what !== "up" && b.what !== "removed");
  model.version++;
}

// bandsOf returns when runtimes were not up, each with what it was instead.
function bandsOf() {
  if (model.story.known) return model.bands;
  if (bandsOf.version !== model.version) Object.assign(bandsOf, { version: model.version, all: inferred(model.calls) });
  return bandsOf.all;
}

// inferred guesses bands, for a recording that has no changes of conditions: from the first call that a runtime did not
// accept, or that the cache answered, to the next one that it answered.
function inferred(calls) {
  const open = new Map(), all = [];
  for (const call of calls) {
    for (const backend of call.backends) {
      const leg = call.legs.find((l) => l.backend === backend), band = open.get(backend);
      const gone = (leg || call).code === UNAVAILABLE;
      if (gone || call.memory.includes(backend)) {
        if (!band) all.push(open.set(backend, { backend, from: call.began, to: Infinity, what: "slow" }).get(backend));
        if (gone) open.get(backend).what = "gone";
      } else if (band && leg?.code === 0) {
        band.to = call.began + call.took;
        open.delete(backend);
      }
    }
  }
  return all;
}

// conditionsOf returns the condition of each runtime and plugin, now or at the end of the recording, the worst first: what
// it is, since when, why. A report that is older than the latest change says nothing more.
function conditionsOf() {
  const told = status.report?.backends || [];
  const names = told.length ? told.map((b) => b.name) : model.info.backends?.length ? model.info.backends.map((b) => b.name) : [...model.states.keys()];
  const all = [];
  for (const name of names) {
    const b = told.find((one) => one.name === name), c = model.states.get(name);
    if (!b && !c) continue;
    const newer = b && (!c || b.state === c.what && Date.parse(b.since) >= c.from); // than the latest change
    const { containers, images, tookNs } = newer ? b : live.on ? c : {};
    const failing = newer && b.state === "up" && b.error; // nobody knows since when
    all.push({ name, what: failing ? "failing" : c ? c.what : b.state, since: failing ? undefined : c ? c.from : Date.parse(b.since), why: (newer && b.error) || c?.why || "",
      pods: (newer ? b.pods : undefined) ?? model.story.counts[name], containers, images, tookNs });
  }
  all.push(...pluginsOf());
  const r = status.report;
  if (r && !r.ready) all.unshift({ name: "criproxy", what: "not ready", why: r.listeners?.find((l) => l.error)?.error || "" });
  if (r?.config.error) all.unshift({ name: "configuration", what: "refused", since: Date.parse(r.config.failed), why: r.config.error });
  return all.sort((a, b) => rankOf(b.what) - rankOf(a.what));
}

// pluginsOf returns the conditions of the plugins that criproxy reports. The changes have them in a recording, and until
// there is a report, which waits for a runtime that hangs.
function pluginsOf() {
  const changed = [...model.plugins.values()].map((c) => ({ name: c.plugin, state: c.what === "plugin-down" ? "down" : "ready", error: c.why }));
  return (status.report ? status.report.hooks?.plugins || [] : changed).map((p) => {
    const c = model.plugins.get(p.name);
    return { name: `plugin ${p.name}`, plugin: p, what: p.state === "ready" && p.error ? "refused" : p.state, since: c?.what === "plugin-down" ? c.t : undefined, why: p.error || "" };
  });
}

// rankOf says how bad a condition is: 0 is not bad.
const rankOf = (what) => ({ up: 0, ready: 0, connecting: 1, slow: 2, failing: 2, down: 2, broken: 2 }[what] ?? 3);
const classOf = (what) => ["up", "connecting", "slow", "gone"][rankOf(what)];
const worstOf = (conditions) => classOf(conditions.reduce((worst, c) => (rankOf(c.what) > rankOf(worst) ? c.what : worst), "up"));

// lackOf says why the page lacks the beginning of a call: "" if it has it. A call that began before all that a live page has
// as a whole began before what it has loaded.
function lackOf(call) {
  if (!(call.flags & PARTIAL)) return "";
  return live.on && model.info.older && call.id < model.first ? "not loaded" : "overwritten";
}

// older says that the recording has calls from before those of this page, which can have them too.
const older = () => live.on && model.info.older && !model.dropped && !model.missing;

// notLoaded says which calls of the recording this page does not have. "" if it has all.
function notLoaded() {
  if (!older()) return "";
  const at = (t) => `${day(t) === day(model.info.from) ? "" : `${day(t)} `}${clock(t, 0)}`;
  const { oldest, notable } = status.report?.recorder || {};
  const back = [oldest && `to ${at(Date.parse(oldest))}`, notable && notable !== oldest && `to ${at(Date.parse(notable))} for calls that failed, were slow or changed something`].filter(Boolean);
  return `Calls before ${clock(model.info.from, 0)} are not loaded${back.length ? `; criproxy's recording reaches back ${back.join(", and ")}` : ""}.`;
}

// missingOf says what is missing among the calls, and where: at a time.
function missingOf() {
  if (older()) return [{ t: -Infinity, note: `${notLoaded()} ${model.info.loading ? "They are on their way." : "Click to load them."}`, older: true }, ...gapsOf()];
  const all = [], earlier = [];
  const first = model.story.gaps.filter((g) => !g.time).reduce((n, g) => n + g.calls, 0);
  if (first) earlier.push(live.on ? [first, "criproxy's recorder had overwritten them when this page's server began; a larger -flight-recorder keeps more"] : [first, "they were made before this recording began, or it no longer had them"]);
  if (model.missing) earlier.push([model.missing, "criproxy ui keeps a bounded number of calls, and had forgotten them when this page asked"]);
  if (model.dropped) earlier.push([model.dropped, `this page keeps the latest ${number(MOST)}`]);
  for (const [n, why] of earlier) all.push({ t: -Infinity, note: `${plural(n, "older call")} ${n === 1 ? "is" : "are"} not shown: ${why}.` });
  return all.concat(gapsOf());
}

// gapsOf says what is missing between the calls, and behind them.
function gapsOf() {
  const all = [];
  for (const g of model.story.gaps) if (g.time) all.push({ t: g.time, note: g.calls ? `${plural(g.calls, "call")} ${g.calls === 1 ? "is" : "are"} missing here: criproxy ui was not connected.` : `${plural(g.events, "event")} ${g.events === 1 ? "is" : "are"} missing here: they were overwritten before they were read.` });
  if (model.info.cut) all.push({ t: Infinity, note: "The recording ends here, in the middle of an event." });
  return all;
}
