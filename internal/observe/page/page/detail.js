// The details of a call: what was rewritten, and both legs, field by field.

const PER_DETAILS = 128;
const detail = { page: document, chunks: new Map(), wanted: null, backend: "", back: 0 };

// detailsOf returns the details of a call, from the page or from the server.
async function detailsOf(call) {
  if (live.on && !call.details) {
    const answer = await fetch(`call?key=${call.key}`);
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  }
  const n = Math.floor(call.key / PER_DETAILS), { page, chunks } = call.details || detail;
  if (!chunks.has(n)) {
    if (chunks.size > 8) chunks.delete(chunks.keys().next().value);
    chunks.set(n, unpack(page.getElementById(`details-${n}`)));
  }
  const chunk = await chunks.get(n);
  const d = structuredClone(chunk.calls[call.key % PER_DETAILS]);
  const part = (v) => (typeof v === "number" ? chunk.shared[v] : v);
  d.changes = part(d.changes);
  for (const l of d.legs) for (const m of [...(l.requests || []), ...(l.replies || [])]) m.lines = part(m.lines);
  return d;
}

async function openCall(call, quiet) {
  if (call?.change && !quiet) return showView("status"); // which has all of its text
  if (!call || call.note) return;
  const box = showDetail();
  table.opened = call;
  detail.wanted = call;
  let d;
  try {
    d = await detailsOf(call);
  } catch (e) {
    d = { legs: [], problem: e.message };
  }
  if (detail.wanted !== call) return;
  drawDetail(box, call, d);
  scrollView(box, 0);
  redraw();
  if (!quiet) box.setAttribute("aria-label", `Call ${call.name}, ${statusOf(call)}`);
}

// showDetail makes room for a call.
function showDetail() {
  const box = $("detail");
  if (box.hidden) detail.back = scrollY;
  box.hidden = false;
  document.body.classList.add("narrow");
  return box;
}

function closeCall() {
  table.opened = detail.wanted = null;
  $("detail").hidden = true;
  $("detail").classList.remove("whole");
  $("views").hidden = false;
  document.body.classList.remove("narrow");
  scrollTo(0, detail.back);
  focusView();
  redraw();
}

function drawDetail(box, call, d) {
  const about = aboutOf(call), lack = lackOf(call);
  const sections = [topOf([call.name, el("span", { class: "soft" }, call.method.slice(1, call.method.lastIndexOf("/")))],
    [call.pod && plain("Pod", "only the calls about this pod", () => setFilter("pod", call.pod)), plain("Select", "add to the sequence diagram, or remove (x)", () => toggleSelected(call))],
    el("div", { class: "says" }, el("span", { class: failed(call) ? "bad" : call.code < 0 ? "soft" : "good" }, statusOf(call)), ` after ${duration(call.took)}`,
      el("span", { class: "soft" }, ` · ${day(call.began)} ${clock(call.began)}`), about.name ? ` · ${about.name}` : "",
      lack && chip("", `its beginning is ${lack}`), call.memory.length ? chip("memory", `${call.memory.join(", ")} from cache`) : null))];
  if (d.problem) sections.push(el("section", {}, el("div", { class: "message" }, d.problem)));
  if (failed(call) && call.message) sections.push(el("section", {}, el("div", { class: "message" }, call.message)));
  if (d.legs.length) sections.push(el("section", {}, waterfall(call, d.legs)));
  sections.push(lack === "not loaded" ? wholeOf(call) : rewritten(call, d));
  if (d.legs.length) sections.push(bothLegs(call, d));
  if (call.ids || call.image) {
    sections.push(el("section", {}, el("h3", {}, "About"), el("dl", {}, [["ids", call.ids.split(" ").join("\n")], ["pod uid", call.uid], ["image", call.image]].filter(([, v]) => v)
      .map(([k, v]) => [el("dt", {}, k), el("dd", { class: "mono" }, v.split("\n").map((s) => el("div", {}, s)))]))));
  }
  if (d.legs.length) sections.push(compareWith(call), asCommand(call, d));
  box.replaceChildren(...sections, el("section", {}));
}

// wholeOf shows how to see all of a call that began before what this page has loaded.
function wholeOf(call) {
  const command = `criproxy tail -past -call ${call.id}${call.flags & OWN ? " -own" : ""} -full -admin ${quoted(model.info.title)}`;
  return el("section", {}, el("h3", {}, "Its beginning is not loaded"), el("div", { class: "replay" }, el("p", { class: "soft" }, `It began before ${clock(model.info.from, 0)}. Older loads more calls, and this prints all of it:`), el("code", {}, command)),
    el("div", { class: "does" }, copyButton("Copy the command", () => command)));
}

// asCommand shows how to send a call again, and has it as JSON.
function asCommand(call, d) {
  const command = replayOf(call);
  return el("section", {}, el("h3", {}, "Replay this"), command ? el("div", { class: "replay" }, el("code", {}, command)) : el("p", { class: "soft" }, "It cannot be sent again, because its beginning is overwritten."),
    el("div", { class: "does" }, command && copyButton("Copy the command", () => command), copyButton("Copy the call as JSON", () => JSON.stringify(asJSON(call, d), null, 2))),
    command && el("p", { class: "soft" }, "If the call changes something, replay asks first, or wants -write."));
}

// replayOf returns the command that sends a call again.
function replayOf(call) {
  if (lackOf(call) === "overwritten") return "";
  const { info } = model, own = call.flags & OWN, backend = info.backends?.find((b) => b.name === call.backends[0]);
  const file = call.of || (live.on ? "calls.jsonl" : info.files?.[call.node] || info.title);
  const dump = live.on && !call.of ? `criproxy dump -admin ${quoted(info.title)} ${file} && ` : "";
  return `${dump}criproxy replay ${quoted(file)} -call ${call.id}${own ? ` -backend ${quoted(call.backends[0].slice(call.node ? call.node.length + 1 : 0))}` : ""} -to ${quoted((own ? backend?.address : info.listen) || "SOCKET")}`;
}

// asJSON returns a call with the keys of criproxy view -o json, and its legs as the page shows them.
function asJSON(call, d) {
  const some = (o) => Object.fromEntries(Object.entries(o).filter(([, v]) => v !== "" && v !== 0 && v !== undefined && v?.length !== 0));
  const text = (m) => ({ type: m.type, size: m.size, text: (m.lines || []).map(([depth, name, value]) => `${"  ".repeat(depth)}${name}${value === undefined || value === null ? "" : `: ${value}`}`) });
  return some({ call: call.id, time: new Date(call.began).toISOString(), client: call.pid ? { pid: call.pid, name: call.client } : undefined, own: call.flags & OWN ? true : "", method: call.method,
    backends: [...new Set(call.legs.map((l) => l.backend))], about: some({ namespace: call.namespace, pod: call.pod, uid: call.uid, container: call.container, image: call.image, ids: call.ids.split(" ").filter(Boolean), items: call.items }),
    took_ns: Math.round(call.took * 1e6), code: ended(call) ? CODES[Math.max(call.code, call.code === LEFT ? CANCELED : 0)] || `Code(${call.code})` : "", status: call.message, remembered: call.memory, request_bytes: call.bytesIn, reply_bytes: call.bytesOut,
    changes: d.changes, not_compared: d.gaps, legs: d.legs.map((l) => ({ ...l, requests: l.requests?.map(text), replies: l.replies?.map(text) })) });
}

function widen() {
  $("detail").classList.toggle("whole");
  $("views").hidden = $("detail").classList.contains("whole");
  redraw();
}

// waterfall shows when each leg began and ended.
function waterfall(call, legs) {
  const width = Math.min(600, $("detail").clientWidth - 20), left = Math.min(150, width / 3), right = 76, high = 20;
  const end = Math.max(call.took, ...legs.map((l) => l.began + l.took), 0.001);
  const x = (t) => left + (t / end) * (width - left - right);
  return svg("svg", { class: "fall", viewBox: `0 0 ${width} ${legs.length * high + 2}`, role: "img", "aria-label": "When each leg began and ended" }, legs.map((l, i) => {
    const y = i * high;
    return [svg("line", { x1: left, x2: width - right, y1: y + 10, y2: y + 10 }),
      svg("text", { x: 0, y: y + 14 }, (l.backend || call.client).slice(0, 22)),
      svg("rect", { class: `${l.backend ? "back" : ""}${l.failed ? " fail" : ""}`, x: x(l.began), y: y + 5, width: Math.max(2, x(l.began + l.took) - x(l.began)), height: 10, rx: 2 }),
      svg("text", { x: width - right + 8, y: y + 14 }, duration(l.took))];
  }));
}

// split returns the common beginning and end of two values, and the parts between them.
function split(a, b) {
  let i = 0, j = 0;
  while (i < a.length && i < b.length && a[i] === b[i]) i++;
  while (j < a.length - i && j < b.length - i && a[a.length - 1 - j] === b[b.length - 1 - j]) j++;
  return { before: a.slice(0, i), a: a.slice(i, a.length - j), b: b.slice(i, b.length - j), after: a.slice(a.length - j) };
}

function rewritten(call, d) {
  const legs = d.legs.filter((l) => l.backend).length;
  const changes = d.changes || [];
  const box = el("section", {}, el("h3", {}, "Rewritten on the way"));
  if (call.memory.length) box.append(el("p", { class: "soft" }, `${call.memory.join(", ")} was late, slow or gone: values that no runtime sees here are from cache.`));
  for (const g of d.gaps || []) box.append(el("p", { class: "soft" }, `Not compared${g.way ? `, ${g.way}` : ""}${g.backend ? ` of ${g.backend}` : ""}: ${g.why}.`));
  if (!changes.length) {
    if (!(d.gaps || []).length) {
      box.append(el("div", { class: "soft" }, d.problem ? "" : call.flags & OWN ? "criproxy made this call itself." : !legs ? "criproxy answered without a runtime." : "Nothing: every byte passed unchanged."));
    }
    return box;
  }
  const one = (c) => {
    const front = c.way === "reply" || c.way === "status" ? c.after : c.before, back = c.way === "reply" || c.way === "status" ? c.before : c.after;
    const s = split(front || "", back || "");
    const side = (value, middle) => (!value ? el("td", { class: "mono soft" }, "–") : el("td", { class: "mono" }, s.before, middle ? el("mark", {}, middle) : null, s.after));
    return el("tr", {}, el("td", { class: "path mono" }, `${c.way === "request" ? "→ " : "← "}${c.path || c.way}`), side(front, s.a), side(back, s.b));
  };
  const few = 12;
  const rows = changes.slice(0, few).map(one);
  const body = el("tbody", {}, rows);
  const names = [...new Set(changes.map((c) => c.backend).filter(Boolean))];
  box.append(el("table", { class: "changes" }, el("thead", {}, el("tr", {}, el("th", {}, "Field"), el("th", {}, `What ${call.client} sees`), el("th", {}, `What ${names.length === 1 ? names[0] : "the runtime"} sees`))), body));
  if (changes.length > few) {
    box.append(el("button", { type: "button", onclick: (e) => {
      body.append(...changes.slice(few).map(one));
      e.target.remove();
    } }, `Show all ${number(changes.length)}`));
  }
  if (d.more) box.append(el("p", { class: "soft" }, `And ${number(d.more)} more, which criproxy view -diff prints.`));
  return box;
}

// bothLegs shows the messages of the client's leg beside those of another leg.
function bothLegs(call, d) {
  const client = d.legs.find((l) => !l.backend), backs = d.legs.filter((l) => l.backend);
  let chosen = backs.find((l) => l.backend === detail.backend) || backs.find((l) => l.code === "OK" || !l.code) || backs[0];
  const place = el("div", { class: "legs" });
  const draw = () => place.replaceChildren(...[client, chosen].filter(Boolean).map((l) => legOf(call, l)));
  const choose = el("span", { class: "choose" }, backs.length > 1 ? backs.map((l, i) => el("button", { type: "button", "aria-pressed": l === chosen ? "true" : "false", onclick: (e) => {
    chosen = l;
    detail.backend = l.backend;
    choose.querySelectorAll("button").forEach((b) => b.setAttribute("aria-pressed", b === e.target ? "true" : "false"));
    draw();
  } }, backs.findIndex((o) => o.backend === l.backend) === i ? l.backend : `${l.backend} (${i + 1})`)) : "");
  draw();
  return el("section", {}, el("h3", {}, "Field by field", choose), place);
}

function legOf(call, l) {
  const sections = [];
  const words = (title, pairs) => pairs && sections.push(el("div", { class: "leg" }, el("h4", {}, title), el("div", { class: "fields" }, pairs.map(([k, v]) => line(0, k, v)))));
  const all = (list, arrow, rest) => {
    for (const m of list || []) sections.push(messageOf(m, arrow));
    if (rest) sections.push(el("p", { class: "soft" }, `and ${plural(rest, "more message")}`));
  };
  all(l.requests, "→", l.more_requests);
  all(l.replies, "←", l.more_replies);
  words("→ metadata", l.metadata);
  words("← header", l.header);
  words("← trailer", l.trailer);
  return el("div", {}, el("h3", {}, el("b", {}, l.backend || l.process), l.backend && l.method !== call.method ? el("span", { class: "mono" }, l.method.slice(1)) : null,
    l.deadline ? `deadline in ${duration(l.deadline)}` : ""), sections,
  el("p", { class: l.failed ? "bad" : "soft" }, l.code ? `${l.code}${l.status ? `: ${l.status}` : ""} after ${duration(l.took)}` : "its end was not recorded"));
}

function messageOf(m, arrow) {
  const notes = [bytes(m.size), m.redacted ? "without secrets" : "", m.kept !== undefined ? `${bytes(m.kept)} kept` : ""].filter(Boolean).join(", ");
  const lines = (m.lines || []).map(([depth, name, value, changed]) => line(depth, name, value, changed));
  if (!lines.length) lines.push(el("div", { class: "note d0" }, m.size ? "nothing of it was kept" : "empty"));
  if (m.more) lines.push(el("div", { class: "note d0" }, `and ${plural(m.more, "more line")}`));
  return el("div", { class: "leg" }, el("h4", {}, `${arrow} ${m.type}`, el("span", {}, notes)), el("div", { class: "fields" }, lines));
}

function line(depth, name, value, changed) {
  return el("div", { class: `d${Math.min(depth, 6)}${changed ? " changed" : ""}` }, el("span", { class: "name" }, name), value === undefined || value === null ? "" : [el("span", { class: "name" }, ": "), el("span", { class: "value" }, value)]);
}

// unpack reads a block of compressed data.
async function unpack(script) {
  const text = atob(script.textContent);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}
