// The pods as swim lanes by runtime.

const pods = { high: 36, lanes: [], made: "" };

function buildPods(view) {
  pods.axis = el("div", { class: "axis", "aria-hidden": "true" });
  pods.body = el("div", { class: "body", role: "list", "aria-label": "Pods" });
  pods.none = el("div");
  const legend = [["sandbox", "sandbox"], ["pull", "image pulled"], ["run", "container made, started"], ["live", "container runs"], ["probe", "exec, probe"], ["stop", "stop, remove"], ["bad", "failed"], ["slow", "slow call"], ["gone", "runtime gone"], ["late", "runtime slow"]];
  view.append(el("div", { class: "lanes" },
    el("div", { class: "legend" }, legend.map(([k, word]) => el("span", {}, el("i", { class: `i-${k}` }), word))),
    el("div", { class: "lanehead" }, el("div"), pods.axis), pods.body, pods.none));
  onScroll(view, drawLanes);
  pods.body.addEventListener("mousemove", (e) => {
    const place = placeUnder(e), call = callAt(place);
    const band = place && !call && bandsOf().find((b) => b.backend === place.lane.backend && place.x(b.from) <= place.at && place.at <= place.x(b.to));
    if (band) return tip(e, el("b", {}, `${band.backend} ${band.what}`), el("div", {}, `${clock(band.from, 0)} – ${band.to === Infinity ? "" : `${clock(band.to, 0)}, ${duration(band.to - band.from)}`}`), band.why && el("div", {}, band.why));
    if (!call) return tip();
    tip(e, el("b", {}, `${call.name}${call.container ? ` ${call.container}` : ""}`), el("div", {}, `${clock(call.began)} · ${duration(call.took)} · `, el("span", { class: failed(call) ? "bad" : "" }, statusOf(call))), failed(call) && el("div", {}, call.message.slice(0, 200)));
  });
  pods.body.addEventListener("mouseleave", () => tip());
  pods.body.addEventListener("click", (e) => {
    const call = callAt(placeUnder(e));
    if (call) {
      tip();
      openCall(call);
    } else if (e.target.closest(".lane") && !e.target.closest("svg")) {
      const lane = pods.lanes[Number(e.target.closest(".lane").dataset.i)];
      if (lane.pod) setFilter("pod", document.querySelector("#filters input[name=pod]").value === lane.pod ? "" : lane.pod);
    }
  });
}

// lanesOf puts calls into lanes: one for each runtime, and below it one for each of its pods, also those that only lists
// show. Those in trouble are first.
function lanesOf() {
  const lanes = new Map();
  const group = (backend) => lanes.get(backend) || lanes.set(backend, { backend, group: true, calls: [], pods: [] }).get(backend);
  for (const name of backendsOf()) group(name);
  const byPod = new Map();
  const lane = (key, backend, pod) => byPod.get(key) || byPod.set(key, { ...pod, key, backend, calls: [], containers: new Map() }).get(key);
  for (const call of filter.shown) {
    if (!call.pod || call.backends.length > 1) for (const name of call.backends) group(name).calls.push(call);
    else lane(keyOf(call), model.homes.get(call.node + call.uid) || call.backend || "", call).calls.push(call);
  }
  const r = range();
  for (const p of model.story.pods) {
    const backend = p.backend || model.homes.get((p.node || "") + p.uid) || "";
    if (p.to >= r.from && p.from <= r.to && about({ ...p, backends: [backend] }, "pod", "backend")) lane(keyOf(p), backend, p).listed = p;
  }
  for (const one of byPod.values()) {
    lifeOf(one);
    group(one.backend).pods.push(one);
  }
  const trouble = (g) => [rankOf(model.states.get(g.backend)?.what || "up"), bandsOf().some((b) => b.backend === g.backend && b.to >= r.from && b.from <= r.to) ? 1 : 0];
  return [...lanes.values()].filter((g) => g.pods.length || g.calls.length)
    .sort((a, b) => trouble(b)[0] - trouble(a)[0] || trouble(b)[1] - trouble(a)[1])
    .flatMap((g) => [g, ...g.pods.sort((a, b) => b.failed - a.failed || b.slow - a.slow || a.from - b.from)]);
}

// lifeOf finds when the sandboxes and containers of a pod began and ended, as far as calls, lists and statuses show. A pod
// gets another sandbox when its sandbox dies, and another container when a container ends.
function lifeOf(lane) {
  const listed = lane.listed?.from ?? Infinity;
  lane.from = lane.calls.reduce((least, c) => Math.min(least, c.began), listed);
  lane.lives = [];
  const runsOf = (name) => (lane.containers.get(name) || lane.containers.set(name, { runs: [] }).get(name)).runs;
  for (const r of lane.listed?.runs || []) runsOf(r.container).push({ id: r.id, from: r.from, to: Infinity });
  for (const c of lane.calls) {
    const end = c.began + c.took, id = c.ids.split(" ")[0];
    if (c.code !== 0) continue;
    const created = c.name === "RunPodSandbox";
    if (!lane.lives.length && (!created || listed < c.began)) lane.lives.push({ id: "", from: Math.min(listed, c.began), to: created ? c.began : Infinity }); // one whose beginning is not among the calls
    if (created) lane.lives.push({ id, from: c.began, to: Infinity });
    if (c.name === "StopPodSandbox" || c.name === "RemovePodSandbox") {
      const life = lane.lives.find((l) => l.id === id) || lane.lives.find((l) => !l.id);
      if (life) life.to = Math.min(life.to, end);
    }
    if (!c.container) continue;
    const runs = runsOf(c.container), run = runs.find((r) => shortID(id).endsWith(r.id));
    if (c.name === "StartContainer" && run) run.from = end;
    else if (c.name === "StartContainer" || c.kind === "probe" && !run) runs.push({ id: shortID(id), from: c.kind === "probe" ? c.began : end, to: Infinity });
    else if ((c.name === "StopContainer" || c.name === "RemoveContainer") && run) run.to = Math.min(run.to, c.name === "StopContainer" ? end : c.began);
  }
  if (lane.listed && !lane.lives.length) lane.lives.push({ id: "", from: listed, to: Infinity });
  for (const life of lane.lives) life.to = Math.min(life.to, life.from < lane.listed?.gone ? lane.listed.gone : Infinity, model.to);
  for (const box of lane.containers.values()) {
    for (const run of box.runs) run.to = Math.min(run.to, lane.lives.find((l) => l.from <= run.from && run.from <= l.to)?.to ?? model.to);
  }
  lane.failed = lane.calls.filter(failed).length;
  lane.slow = lane.calls.filter(slow).length;
}

function drawPods() {
  const made = `${filter.version} ${model.version}`;
  if (pods.made !== made) {
    pods.lanes = lanesOf();
    pods.made = made;
  }
  pods.high = narrow() ? 54 : 36; // names have several lines there
  pods.body.style.height = `${pods.lanes.length * pods.high}px`;
  pods.none.hidden = pods.lanes.length > 0;
  pods.none.replaceChildren(nothing("No pods here", model.calls.length ? "No call that matches the filters is about a pod." : ""));
  drawLanes();
}

function drawLanes() {
  const r = range(), sight = sightOf(pods.view);
  const width = Math.max(120, pods.body.clientWidth - nameWidth());
  drawAxis(pods.axis, r.from, r.to, width - 16, 10);
  const top = Math.max(0, sight.top - 70);
  const first = Math.max(0, Math.floor(top / pods.high) - 3), last = Math.min(pods.lanes.length, Math.ceil((top + sight.high) / pods.high) + 3);
  const rows = [];
  for (let i = first; i < last; i++) rows.push(laneOf(pods.lanes[i], i, r, width - 16));
  pods.body.replaceChildren(...rows);
}

function laneOf(lane, i, r, width) {
  const x = (t) => ((Math.max(r.from, Math.min(r.to, t)) - r.from) / (r.to - r.from)) * width;
  const parts = [];
  const box = (name, from, to, y, h, rx = 0) => to >= r.from && from <= r.to && parts.push(svg("rect", { class: name, x: x(from).toFixed(1), y, width: Math.max(1.5, x(to) - x(from)).toFixed(1), height: h, rx }));
  for (const at of ticks(r.from, r.to, Math.min(10, Math.max(2, Math.floor(width / 90)))).all) parts.push(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: 0, y2: pods.high }));
  for (const t of bandsOf().filter((t) => t.backend === lane.backend && t.to >= r.from && t.from <= r.to)) {
    const kind = classOf(t.what);
    box(`band ${kind}`, t.from, t.to, 0, pods.high);
    parts.push(...[t.from, t.to].filter((at) => at >= r.from && at <= r.to).map((at) => svg("line", { class: `edge ${kind}`, x1: x(at), x2: x(at), y1: 0, y2: pods.high })));
    const says = t.to === Infinity ? `${t.what} since ${clock(t.from, 0)}` : `${t.what} ${duration(t.to - t.from)}`;
    if (lane.group && x(t.to) - x(t.from) > 6.2 * says.length) parts.push(svg("text", { class: kind, x: x(t.from) + 5, y: 13 }, says));
  }
  if (!lane.group) {
    for (const life of lane.lives) box("life", life.from, life.to, 9, 18, 4);
    let n = 0;
    const count = [...lane.containers.values()].filter((c) => c.runs.length).length;
    const h = Math.max(2, Math.min(5, Math.floor(14 / Math.max(1, count)) - 1));
    for (const c of lane.containers.values()) {
      if (!c.runs.length) continue;
      for (const run of c.runs) box("live", run.from, run.to, 11 + n * (h + 1), h, 1);
      n = Math.min(n + 1, Math.floor(14 / (h + 1)) - 1);
    }
  }
  parts.push(...marksOf(lane, r, x));
  const name = lane.group ? el("div", {}, lane.backend || "no runtime", el("span", { class: "soft" }, ` ${podsIn(lane)}`))
    : el("div", { title: `${lane.namespace}/${lane.pod} ${lane.uid}` }, lane.pod, el("span", { class: "sub" }, lane.failed ? [el("span", { class: "bad" }, `${lane.failed} failed`), " · "] : "", lane.namespace, ` · ${plural(lane.calls.length, "call")}`));
  const row = el("div", { class: `lane${lane.group ? " group" : ""}`, role: "listitem", "data-i": i }, name, svg("svg", { "aria-hidden": "true" }, parts));
  row.style.top = `${i * pods.high}px`;
  row.style.height = `${pods.high}px`;
  return row;
}

// podsIn says how many pods a runtime has, and how many of them are here.
function podsIn(group) {
  const has = conditionsOf().find((c) => c.name === group.backend)?.pods, here = group.pods.length;
  const narrowed = Object.keys(filter.values).length || filter.memory;
  if (has === undefined || has === here && !narrowed) return here || has === 0 ? plural(here, "pod") : "no pod in these calls";
  return here ? `${plural(here, "pod")} here, ${number(has)} ${live.on ? "now" : "at the end"}` : has ? `${plural(has, "pod")}, none of them in these calls` : "0 pods";
}

// placeUnder returns the place under the mouse: its lane, how far right it is, and how far right a time is. It is null outside
// of the pictures.
function placeUnder(e) {
  const picture = e.target.closest?.(".lane svg");
  if (!picture) return null;
  const r = range(), wide = pods.body.clientWidth - nameWidth() - 16;
  return { lane: pods.lanes[Number(picture.closest(".lane").dataset.i)], at: e.clientX - picture.getBoundingClientRect().left, x: (t) => ((t - r.from) / (r.to - r.from)) * wide };
}

// nameWidth is the width of the names of lanes.
const nameWidth = () => (narrow() ? 130 : 230);

// spanIn returns when a call began and how long it took, in a lane: that of a runtime has what the runtime took.
function spanIn(lane, c) {
  const leg = lane.group && c.legs.find((l) => l.backend === lane.backend);
  return leg ? [c.began + leg.began, leg.took] : [c.began, c.took];
}

// marksOf draws the calls of a lane: one path for each kind, and one mark where several fall on a pixel.
function marksOf(lane, r, x) {
  const paths = { poll: "", probe: "", sandbox: "", pull: "", run: "", stop: "", failed: "" };
  const seen = new Map();
  let rings = "";
  for (const c of lane.calls) {
    const [from, took] = spanIn(lane, c);
    if (from + took < r.from || from > r.to) continue;
    const bad = failed(c), kind = bad ? "failed" : c.kind;
    const a = x(from), wide = c.kind === "poll" && c.flags & STREAM ? 2 : Math.max(c.kind === "poll" || c.kind === "probe" ? 1.6 : 3, x(from + took) - a);
    const at = `${kind}${Math.round(a)}`;
    if (seen.get(at) >= wide) continue;
    seen.set(at, wide);
    if (bad) paths.failed += `M${(a - 4).toFixed(1)} 1.5h8l-4 6.5zM${(a - 0.7).toFixed(1)} 6h1.4v22h-1.4z`;
    else if (kind === "poll") paths.poll += `M${a.toFixed(1)} ${lane.group ? 20 : 30}h${wide.toFixed(1)}v${lane.group ? 9 : 3}h${(-wide).toFixed(1)}z`;
    else if (kind === "probe") paths.probe += `M${a.toFixed(1)} 28h${wide.toFixed(1)}v5h${(-wide).toFixed(1)}z`;
    else paths[kind] += `M${a.toFixed(1)} 9h${wide.toFixed(1)}v18h${(-wide).toFixed(1)}z`;
    if (slow(c, took) && !seen.has(`ring${Math.round(a / 9)}`) && seen.set(`ring${Math.round(a / 9)}`, 1)) rings += `M${(a + 3.5).toFixed(1)} 5.5m-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0`;
  }
  return [...Object.entries(paths).filter(([, d]) => d).map(([k, d]) => svg("path", { class: k, d })), rings ? svg("path", { class: "slowmark", d: rings }) : ""];
}

// callAt returns the call at a place. Of several nearby calls it prefers the most important.
function callAt(place) {
  let best = null, least = 6;
  for (const c of place?.lane.calls || []) {
    const { lane, at, x } = place;
    const [from, took] = spanIn(lane, c), a = x(from), b = Math.max(x(from + took), a + 3);
    if (c.flags & STREAM && at > a + 4) continue;
    const far = at < a ? a - at : at > b ? at - b : 0;
    const rank = far + (failed(c) ? -3 : c.kind === "poll" ? 2 : c.kind === "probe" ? 1 : 0);
    if (far <= 5 && rank < least) [best, least] = [c, rank];
  }
  return best;
}
