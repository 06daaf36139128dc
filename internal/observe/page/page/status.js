// The status of a running criproxy, as criproxy status shows it.

const status = { report: null };
const MOST_TOLD = 100;

function drawStatus() {
  const r = status.report;
  const since = (t) => `${clock(Date.parse(t), 0)}, ${duration(Math.max(0, Date.now() - Date.parse(t)))} ago`;
  const cards = [];
  if (r) cards.push(el("div", { class: "card" }, el("h3", {}, "criproxy", el("span", { class: "state" }, r.ready ? "ready" : "not ready")),
    listOf([["version", r.version], ["process", r.pid], ["began", since(r.started)], ["configuration", r.config.file], ["loaded", since(r.config.loaded)], ["clients", r.listeners.map((l) => l.path).join(", ")], ["recorded", r.recorder?.oldest && `since ${since(r.recorder.oldest)}`]]),
    [r.config.error, ...r.listeners.map((l) => l.error)].map((e) => e && el("div", { class: "error" }, e))));
  else if (live.on) cards.push(el("div", { class: "card" }, el("h3", {}, "criproxy", el("span", { class: "state" }, "no answer yet")), "This page asks criproxy for its status every few seconds."));
  for (const c of conditionsOf()) {
    const b = c.plugin || (r ? r.backends.find((one) => one.name === c.name) : model.info.backends?.find((one) => one.name === c.name));
    if (!b) continue; // criproxy itself, above
    const sum = (counter) => b.points?.reduce((n, point) => n + point[counter], 0);
    cards.push(el("div", { class: `card ${classOf(c.what)}` }, el("h3", {}, signOf(classOf(c.what)), c.name, el("span", { class: "state" }, c.what)),
      listOf([["runtime", b.runtime], ["socket", b.address || b.socket], [c.what, c.since && sinceOf(c.since)], ["policy", c.plugin?.policy], ["asked", sum("calls")], ["failed", sum("failed")], ["refused", sum("refused")], ["changes", sum("changes")], ["pods", c.pods], ["containers", c.containers], ["images", c.images], ["from cache", b.remembered ? plural(b.remembered, "answer") : ""], ["list took", c.tookNs && c.what === "up" ? duration(c.tookNs / 1e6) : ""]]),
      c.what !== "up" && c.why && el("div", { class: "error" }, c.why)));
  }
  if (model.story.changes.length) {
    const latest = model.story.changes.slice(-MOST_TOLD).reverse();
    cards.push(el("div", { class: "card span", id: "happened" }, el("h3", {}, "What happened"), el("table", { class: "changes errors" }, el("tbody", {}, latest.map((c) => el("tr", {},
      el("td", {}, `${day(c.t)} ${clock(c.t, 0)}`), el("td", {}, c.condition ? signOf(classOf(c.what)) : "", c.says))))),
    model.story.changes.length > MOST_TOLD && el("p", { class: "soft" }, "criproxy events prints more.")));
  }
  if (!r && !model.story.known) cards.push(el("div", { class: "card span" }, "This recording has no conditions of runtimes. The bands of Pods are inferred from its calls."));
  if (r?.errors?.length) {
    cards.push(el("div", { class: "card span" }, el("h3", {}, "Latest errors that clients got"), el("table", { class: "changes errors" }, el("tbody", {}, r.errors.map((e) => el("tr", { onclick: () => {
      setFilter("method", e.method.slice(e.method.lastIndexOf("/") + 1));
      setFilter("status", e.code);
      showView("calls");
    } }, el("td", {}, clock(Date.parse(e.time), 0)), el("td", {}, `${e.method.slice(e.method.lastIndexOf("/") + 1)}${e.backend ? ` of ${e.backend}` : ""}${e.count > 1 ? `, ${e.count} times` : ""}`), el("td", { class: "bad" }, `${e.code}: ${e.message}`)))))));
  }
  status.view.replaceChildren(el("div", { class: "cards" }, cards));
}
