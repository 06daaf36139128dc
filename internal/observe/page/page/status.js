// The status of a running criproxy, as criproxy status shows it.

const status = { report: null, view: null };

function buildStatus(view) {
  status.view = view;
}

function drawStatus() {
  const r = status.report;
  if (!r) {
    status.view.replaceChildren(el("div", { class: "empty" }, el("b", {}, "No answer yet"), "This page asks criproxy for its status every few seconds."));
    return;
  }
  const facts = (pairs) => el("dl", {}, pairs.filter(([, v]) => v !== undefined && v !== "" && v !== null).map(([k, v]) => [el("dt", {}, k), el("dd", {}, String(v))]));
  const since = (t) => `${clock(Date.parse(t), 0)}, ${duration(Math.max(0, Date.now() - Date.parse(t)))} ago`;
  const cards = [el("div", { class: "card" }, el("h3", {}, "criproxy", el("span", { class: "state" }, r.ready ? "ready" : "not ready")),
    facts([["version", r.version], ["process", r.pid], ["began", since(r.started)], ["configuration", r.config.file], ["loaded", since(r.config.loaded)], ["clients", r.listeners.map((l) => l.path).join(", ")], ["recorded", r.recorder?.oldest && `since ${since(r.recorder.oldest)}`]]),
    r.config.error && el("div", { class: "error" }, r.config.error))];
  for (const b of r.backends) {
    cards.push(el("div", { class: `card ${b.state}` }, el("h3", {}, el("span", { class: "dot" }), b.name, el("span", { class: "state" }, b.state)),
      facts([["runtime", b.runtime], ["socket", b.address], ["since", since(b.since)], ["pods", b.pods], ["containers", b.containers], ["images", b.images], ["from memory", b.remembered ? plural(b.remembered, "answer") : ""], ["list took", b.tookNs ? duration(b.tookNs / 1e6) : ""]]),
      b.error && el("div", { class: "error" }, b.error)));
  }
  const outages = r.backends.flatMap((b) => (b.outages || []).map((o) => [b.name, o])).sort((a, b) => Date.parse(b[1].from) - Date.parse(a[1].from));
  if (outages.length) {
    cards.push(el("div", { class: "card span" }, el("h3", {}, "Outages"), el("table", { class: "changes errors" }, el("tbody", {}, outages.map(([name, o]) => el("tr", {},
      el("td", {}, clock(Date.parse(o.from), 0)), el("td", {}, `${name} ${o.to ? `was ${o.state} for ${duration(Date.parse(o.to) - Date.parse(o.from))}` : `is ${o.state}`}`), el("td", { class: "bad" }, o.error || "")))))));
  }
  if (r.errors?.length) {
    cards.push(el("div", { class: "card span" }, el("h3", {}, "Latest errors that clients got"), el("table", { class: "changes errors" }, el("tbody", {}, r.errors.map((e) => el("tr", { onclick: () => {
      setFilter("method", e.method.slice(e.method.lastIndexOf("/") + 1));
      setFilter("status", e.code);
      showView("calls");
    } }, el("td", {}, clock(Date.parse(e.time), 0)), el("td", {}, `${e.method.slice(e.method.lastIndexOf("/") + 1)}${e.backend ? ` of ${e.backend}` : ""}${e.count > 1 ? `, ${e.count} times` : ""}`), el("td", { class: "bad" }, `${e.code}: ${e.message}`)))))));
  }
  status.view.replaceChildren(el("div", { class: "cards" }, cards));
}
