// Two calls side by side, with their differences. The second may be of another recording, whose page the user opens.

const compare = { other: null }; // the calls of the other recording, and its name

// fieldsOf returns the values of a call's fields: path → value. A field that occurs several times has a number.
function fieldsOf(call, d) {
  const all = new Map([["client", call.client], ["runtime", call.backend], ["about", Object.values(aboutOf(call)).filter(Boolean).join(" ")], ["status", `${statusOf(call)} ${call.message}`.trim()], ["took", duration(call.took)], ["from cache", call.memory.join(", ")]]);
  const names = new Set();
  const put = (path, value) => {
    let key = path;
    for (let n = 1; names.has(key); n++) key = `${path}[${n}]`;
    names.add(key);
    if (value !== undefined && value !== null) all.set(key, value);
    return key;
  };
  for (const leg of d.legs) {
    const of = leg.backend ? `${leg.backend} ` : "";
    for (const [arrow, messages] of [["→", leg.requests], ["←", leg.replies]]) {
      for (const [i, m] of (messages || []).entries()) {
        const path = [`${of}${arrow}${i ? ` ${i + 1}` : ""}`];
        for (const [depth, name, value] of m.lines || []) {
          path.length = depth + 1;
          path[depth + 1] = put(`${path[depth]} ${name}`.replace(/^(\S+ )?([→←](?: \d+)?) (\S+) /, "$1$2 $3."), value);
        }
      }
    }
  }
  return all;
}

// sameIn returns the call of the other recording that is most like a call: the same method about the same thing, and as
// many such calls before it.
function sameIn(calls, call) {
  const alike = [(c) => c.name === call.name && podOf(c) === podOf(call) && c.container === call.container && c.client === call.client, (c) => c.name === call.name && podOf(c) === podOf(call), (c) => c.name === call.name];
  for (const test of alike) {
    const found = calls.filter(test);
    if (found.length) return found[Math.min(model.calls.filter(test).indexOf(call), found.length - 1)];
  }
  return null;
}

// openRecording reads the page of another recording, and compares a call with the same call there.
async function openRecording(file, call) {
  const page = new DOMParser().parseFromString(await file.text(), "text/html");
  if (!page.getElementById("info")) throw new Error(`${file.name} is not a page of a recording: criproxy view -html makes one`);
  const other = { name: file.name, calls: [], details: { page, chunks: new Map() } };
  for (let n = 0, block; (block = page.getElementById(`rows-${n}`)); n++) {
    const batch = await unpack(block);
    for (const row of batch.r) other.calls.push(Object.assign(callOf(row, batch.s), { details: other.details, of: file.name }));
  }
  const same = sameIn(other.calls, call);
  if (!same) throw new Error(`${file.name} has no call of ${call.name}`);
  await drawCompared(call, same);
}

const plain = (label, title, onclick) => el("button", { type: "button", class: "plain", title, onclick }, label);

// topOf is the top of what is beside the calls.
const topOf = (title, buttons, says) => el("div", { class: "top" }, el("h2", {}, title, el("span", { class: "push" }, buttons, plain("Wide", "as wide as the page (w)", widen), plain("Close", "close (Esc)", closeCall))), says);

async function drawCompared(a, b) {
  const [da, db] = await Promise.all([detailsOf(a), detailsOf(b)]), box = showDetail();
  const fa = fieldsOf(a, da), fb = fieldsOf(b, db);
  const paths = [...new Set([...fa.keys(), ...fb.keys()])].filter((p) => fa.get(p) !== fb.get(p));
  const head = (call) => `${call.name}, ${day(call.began)} ${clock(call.began)}${call.of ? `, in ${call.of}` : ""}`;
  const side = (value, s, middle) => (value === undefined ? el("td", { class: "mono soft" }, "–") : el("td", { class: "mono" }, s.before, middle && el("mark", {}, middle), s.after));
  const rows = paths.slice(0, 300).map((p) => {
    const s = split(fa.get(p) ?? "", fb.get(p) ?? "");
    return el("tr", {}, el("td", { class: "path mono" }, p), side(fa.get(p), s, s.a), side(fb.get(p), s, s.b));
  });
  const front = (call, d) => legOf(call, d.legs.find((l) => !l.backend) || d.legs[0]);
  box.replaceChildren(topOf("Two calls", plain("Back", "the first of them", () => openCall(a))),
  el("section", { class: "compared" }, el("h3", {}, paths.length ? `${plural(paths.length, "difference")}` : "No differences"),
    el("table", { class: "changes" }, el("thead", {}, el("tr", {}, el("th", {}, "Field"), el("th", {}, head(a)), el("th", {}, head(b)))), el("tbody", {}, rows)),
    paths.length > rows.length && el("p", { class: "soft" }, `And ${number(paths.length - rows.length)} more.`)),
  el("section", {}, el("h3", {}, "As the clients see them"), el("div", { class: "legs" }, da.legs.length && front(a, da), db.legs.length && front(b, db))));
  scrollView(box, 0);
  detail.wanted = null;
  table.opened = a;
  redraw();
}

// compareWith offers to compare a call.
function compareWith(call) {
  const others = [...model.selected].filter((c) => c !== call), problem = el("p", { class: "bad", hidden: true });
  const run = (what) => what.catch((e) => {
    problem.hidden = false;
    problem.textContent = e.message;
  });
  const file = el("input", { type: "file", accept: ".html", "aria-label": "page of another recording", hidden: true, onchange: () => file.files.length && run(openRecording(file.files[0], call)) });
  return el("section", {}, el("h3", {}, "Compare"), el("div", { class: "does" },
    others.slice(0, 4).map((c) => el("button", { type: "button", onclick: () => run(drawCompared(call, c)) }, `with ${c.name} at ${clock(c.began)}`)),
    el("button", { type: "button", title: "a page that criproxy view -html made", onclick: () => file.click() }, "with the same call in another recording"), file,
    others.length ? "" : el("span", { class: "soft" }, "To compare it with another call, select that one with x.")), problem);
}
