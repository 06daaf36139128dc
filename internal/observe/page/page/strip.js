// The strip on every page: what is wrong, and the condition of each runtime now, since when, why, and how many pods that
// concerns. It has a plugin only while something is wrong with it.

// sinceOf says since when something is so, and for how long if it goes on.
function sinceOf(t) {
  const today = day(live.on ? Date.now() : model.to), goesOn = live.on && !$("link").dataset.lost;
  return `since ${day(t) === today ? "" : `${day(t)} `}${clock(t, 0)}${goesOn ? `, ${duration(Math.max(0, Date.now() - t))}` : ""}`;
}

function drawStrip() {
  const all = conditionsOf().filter((c) => !c.plugin || rankOf(c.what)), box = $("strip");
  const inferring = !model.story.known && (!live.on || status.report) && model.calls.length;
  const wrong = presentFindings();
  box.hidden = !all.length && !inferring && !wrong.length;
  const then = live.on ? $("link").dataset.lost && "When criproxy last answered:" : "At the end of the recording:";
  box.replaceChildren(then && all.length ? el("span", { class: live.on ? "soft" : "soft end" }, then) : "", ...all.map((c) => el("button", { type: "button", class: `cond ${classOf(c.what)}`, onclick: () => showView("status") },
    signOf(classOf(c.what)), el("b", {}, c.name), ` ${c.what}`, c.since && ` ${sinceOf(c.since)}`, c.pods === undefined ? "" : `, ${plural(c.pods, "pod")}`, c.why && el("span", { class: "why" }, c.why))),
  wrong.length ? el("button", { type: "button", class: `cond found ${levelClass(wrong[0])}`, onclick: () => showView("findings") }, el("b", {}, plural(wrong.length, "finding")), el("span", { class: "why" }, wrong[0].headline || wrong[0].text)) : "",
  inferring ? el("span", { class: "soft" }, "No conditions of runtimes are recorded here: bands are inferred from calls.") : "");
  const link = $("link"), worst = all.length ? worstOf(all) : "connecting";
  if (!live.on) {
    link.hidden = !all.length;
    link.textContent = `${worst === "up" ? "all up" : all[0]?.what} at the end`;
  }
  link.className = link.dataset.lost ? "lost" : worst;
}
