// The model: reads calls from the page or the server, and interprets them.

const OWN = 1, PARTIAL = 2, STREAM = 4, MEMORY = 8;
const UNDER_WAY = -1, LOST = -2, LEFT = -3; // LEFT is Canceled because the client ended the call, which is no failure
const CODES = ["OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists", "PermissionDenied",
  "ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable", "DataLoss", "Unauthenticated"];
const CANCELED = 1, DEADLINE = 4, UNAVAILABLE = 14;

// The columns of a row, as batch.go writes them. The numbers in TEXT columns are indexes in the batch's list of
// strings.
const COLUMNS = ["key", "began", "took", "method", "client", "pid", "code", "message", "namespace", "pod", "uid", "container", "image", "ids",
  "items", "bytesIn", "bytesOut", "flags", "changes", "legs", "memory"];
const TEXT = new Set(["method", "client", "message", "namespace", "pod", "uid", "container", "image", "ids"]);

const model = {
  info: { backends: [] },
  calls: [],          // in the order in which they ended
  open: new Map(),    // :: key → call that is under way
  homes: new Map(),   // :: uid of a pod → its runtime
  from: Infinity, to: -Infinity,
  version: 0,         // counts changes
  changed: false,     // a call that was there already is another
  dropped: 0,         // calls that were forgotten, to bound memory
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
  const backends = [...new Set(legs.map((l) => l.backend))];
  call.backends = backends.length ? backends : call.memory.length ? call.memory : ownerOf(call);
  call.backend = call.backends.join(", ");
  call.kind = kindOf(call.name);
  return call;
}

// ownerOf returns the runtime that a call was meant for, if it reached none: the runtime of the id's prefix, or of the
// pod.
function ownerOf(call) {
  if (call.code !== UNAVAILABLE) return [];
  const named = model.info.backends.find((b) => call.ids.startsWith(`${b.name}__`));
  const name = named ? named.name : model.homes.get(call.uid);
  return name ? [name] : [];
}

// ingest adds a batch of rows.
function ingest(batch) {
  for (const row of batch.r) {
    const call = callOf(row, batch.s);
    if (call.uid && call.legs.length === 1) {
      if (model.homes.size > 10_000) model.homes.clear();
      model.homes.set(call.uid, call.legs[0].backend);
    }
    const old = model.open.get(call.key);
    if (old) {
      Object.assign(old, call);
      model.changed = true;
      if (call.code !== UNDER_WAY) model.open.delete(call.key);
    } else {
      model.calls.push(call);
      if (call.code === UNDER_WAY) model.open.set(call.key, call);
    }
    model.from = Math.min(model.from, call.began);
    model.to = Math.max(model.to, call.began + call.took);
  }
  if (live.on && model.calls.length > MOST) {
    const gone = model.calls.splice(0, model.calls.length - FEWER);
    model.dropped += gone.length;
    for (const call of gone) {
      model.open.delete(call.key);
      model.selected.delete(call);
    }
    model.from = model.calls.reduce((least, c) => Math.min(least, c.began), Infinity);
  }
  model.version++;
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

const KINDS = { sandbox: "sandbox", pull: "pull", run: "container made, started", probe: "exec, probe", stop: "stop, remove", poll: "status, list" };

const failed = (call) => call.code > 0;
const ended = (call) => call.code >= 0 || call.code === LEFT;

// slowFor returns after how many milliseconds a call of a kind is marked as slow. Streams and calls that run commands
// in a container are never marked.
const SLOW = { sandbox: 5000, pull: 60_000, run: 2000, probe: Infinity, stop: Infinity, poll: 1000 };
const slow = (call) => !(call.flags & STREAM) && call.code >= 0 && call.took >= SLOW[call.kind] && !/^(GetContainerEvents|Stream)/.test(call.name);

function statusOf(call) {
  if (call.code === UNDER_WAY) return "under way";
  if (call.code === LOST) return "end not recorded";
  if (call.code === LEFT) return "Canceled by the client";
  return CODES[call.code] || `Code(${call.code})`;
}

const podOf = (call) => (call.pod ? `${call.namespace ? `${call.namespace}/` : ""}${call.pod}` : "");

// aboutOf returns the subject of a call: pod and container, an id or an image.
function aboutOf(call) {
  const name = [podOf(call), call.container].filter(Boolean).join("/");
  const id = call.ids && shortID(call.ids.split(" ")[0]);
  return { name, id: id || "", image: call.container ? "" : shortID(call.image), items: call.items };
}

const backendsOf = () => {
  const names = model.info.backends.map((b) => b.name);
  for (const call of model.calls) for (const name of call.backends) if (!names.includes(name)) names.push(name);
  return names;
};

// CALM is how long a backend must answer before another silence counts as a new trouble.
const CALM = 5000;

// troubles returns the periods in which a backend did not answer: from the first call that it did not accept, or that
// criproxy answered from memory, to the next call that it answered. A command in a container that takes too long does
// not count.
function troubles(calls) {
  const at = new Map(), all = [];
  const marks = [];
  for (const call of calls) {
    for (const leg of call.legs) {
      const bad = leg.memory || (leg.code === DEADLINE && call.kind === "poll") ? "memory" : leg.code === UNAVAILABLE ? "outage" : leg.code === 0 && leg.took < SLOW.poll ? "" : undefined;
      if (bad !== undefined) marks.push({ backend: leg.backend, t: bad ? call.began : call.began + leg.began + leg.took, bad });
    }
    if (call.code === UNAVAILABLE && !call.legs.length) for (const backend of call.backends) marks.push({ backend, t: call.began, bad: "outage" });
    for (const name of call.memory) if (!call.legs.some((l) => l.backend === name)) marks.push({ backend: name, t: call.began, bad: "memory" });
  }
  marks.sort((a, b) => a.t - b.t);
  for (const m of marks) {
    const open = at.get(m.backend);
    if (m.bad && !open) {
      const before = all.findLastIndex((t) => t.backend === m.backend);
      const one = before >= 0 && m.t - all[before].to < CALM ? all.splice(before, 1)[0] : { backend: m.backend, from: m.t, kind: m.bad, count: 0 };
      if (m.bad === "outage") one.kind = "outage";
      at.set(m.backend, Object.assign(one, { to: m.t, count: one.count + 1 }));
    } else if (m.bad) {
      open.to = m.t;
      open.count++;
      if (m.bad === "outage") open.kind = "outage";
    } else if (open) {
      open.to = m.t;
      all.push(open);
      at.delete(m.backend);
    }
  }
  for (const open of at.values()) all.push(Object.assign(open, { to: model.to, lasts: true }));
  return all;
}
