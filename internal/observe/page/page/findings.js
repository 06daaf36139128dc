// What is wrong, in the words of criproxy why.

const findings = { report: null };

// presentFindings returns what is wrong now, or was at the end of the recording. Notes are good to know, and no more.
const presentFindings = () => (findings.report?.findings || []).filter((f) => !f.over && f.level !== "note");

const levelClass = (f) => ({ error: "gone", warning: "slow" }[f.level] || "");

function drawFindings() {
  const r = findings.report;
  if (!r) return findings.view.replaceChildren(el("div", { class: "empty" }, el("b", {}, "Nobody has looked yet"), live.on ? "This page looks for what is wrong every few seconds." : "This page was written without them."));
  const seen = `${plural(r.seen.calls, "call")} of clients looked at${r.seen.calls ? `, ${day(Date.parse(r.seen.from))} ${clock(Date.parse(r.seen.from), 0)} – ${clock(Date.parse(r.seen.to), 0)}` : ""}${r.seen.missed ? `; ${plural(r.seen.missed, "event")} missing` : ""}.${older() ? ` ${notLoaded()} criproxy why looks at the last hour.` : ""}${r.seen.limit ? ` ${r.seen.limit}` : ""}`;
  const since = r.seen.limit ? `since ${clock(Date.parse(r.seen.whole), 0)} ` : "";
  const verdict = r.seen.calls ? `Nothing is wrong that the calls ${since}show` : "Nothing is known: there were no calls to look at";
  if (!r.findings.length) findings.view.replaceChildren(el("div", { class: "empty" }, el("b", {}, verdict), seen));
  else findings.view.replaceChildren(el("div", { class: "cards" }, r.findings.map(findingCard), el("p", { class: "soft" }, seen)));
}

function findingCard(f) {
  const at = (t) => `${day(Date.parse(t))} ${clock(Date.parse(t), 0)}`;
  const facts = [["since", at(f.since)], ["last seen", f.last ? at(f.last) + (!f.over ? ", goes on" : f.text.includes("has not tried since") ? ", not tried since" : ", is over") : ""], ["probably", f.cause], ["how sure", f.sure], ["it is not", f.not], ["what to do", f.cure], ["see", f.runbook]];
  return el("div", { class: `card span ${levelClass(f)}` }, el("h3", {}, f.rule, el("span", { class: "state" }, f.level)), el("p", {}, f.text),
    listOf(facts),
    el("table", { class: "changes" }, el("tbody", {}, (f.evidence || []).map((p) => el("tr", {}, el("td", {}, clock(Date.parse(p.time))), el("td", {}, p.text))))),
    f.show && el("button", { type: "button", onclick: () => showEvidence(f) }, "Show the calls"));
}

// showEvidence shows the calls of a finding: it sets the filters that its flags of criproxy view name.
function showEvidence(f) {
  clearFilters();
  for (const [, flag, value] of f.show.matchAll(/-([a-z-]+) ('[^']*'|[^ -][^ ]*)/g)) {
    const name = flag === "follow-pod" ? "pod" : flag;
    if (FILTERS.some((one) => one.name === name)) setFilter(name, value.replaceAll("'", ""));
  }
  if (/-own\b/.test(f.show)) setFlag("own", true);
  setTimes(Date.parse(f.since) - 1000, Date.parse(f.last) + 1000);
  showView("calls");
}
