// The page of all nodes: what differs, a square for each runtime of each node, and a table, the nodes in trouble first.

const fleet = { version: -1, nodes: [], fragment: "", problem: "" };
const LOOK = 5000; // milliseconds
const DAY = 864e5;

// troubleOf ranks the trouble of a node: what has no answer, is not ready, has a runtime that is gone or slow, or has
// refused a configuration.
function troubleOf(n) {
  if (n.error) return 5;
  if (!n.asked) return 0.5;
  if (!n.report.ready) return 4;
  if (backendsOf(n).some((b) => b.state === "gone")) return 3;
  if (backendsOf(n).some((b) => b.state !== "up")) return 2;
  return n.report.config.error ? 1 : 0;
}

const kindOf = (state) => (state === "up" ? "up" : state === "gone" || state === "no answer" ? "gone" : "slow");
// timeOf is a time of a node's report by this machine's clock, or 0 if it has none.
const timeOf = (n, t) => (Date.parse(t) > 0 ? Date.parse(t) - (n.clockOff || 0) : 0);
const agoOf = (n, t) => (timeOf(n, t) ? duration(Math.max(0, Math.round((Date.now() - timeOf(n, t)) / 1e3) * 1e3)) : "");

// backendsOf are the runtimes of a node, or what stands for them.
const backendsOf = (n) => n.report?.backends || [{ name: "", state: n.error ? "no answer" : "not asked yet", error: n.error }];

// open is the address of a node's own page.
const pageOf = (n) => `node/${encodeURIComponent(n.name)}/${fleet.fragment ? `#${fleet.fragment}` : ""}`;

// minorities says which nodes have another value than most.
function minorities(what, valueOf) {
  const by = new Map();
  for (const n of fleet.nodes) if (valueOf(n)) by.set(valueOf(n), [...(by.get(valueOf(n)) || []), n.name]);
  const [most, ...others] = [...by].sort((a, b) => b[1].length - a[1].length);
  return others.map(([value, names]) => el("li", { class: "slow" }, `${plural(names.length, "node has", "nodes have")} ${what} ${value}, and not ${most[0]}: ${names.slice(0, 5).join(", ")}${names.length > 5 ? ` and ${number(names.length - 5)} more` : ""}`));
}

// historyOf draws the conditions of a runtime of a node over the last day.
function historyOf(n, b) {
  const now = Date.now(), at = (t) => Math.max(0, Math.min(100, (100 * (t - now + DAY)) / DAY));
  const bands = (b.outages || []).map((o) => [o.state, timeOf(n, o.from), timeOf(n, o.to)]).map(([state, from, to]) => svg("rect", { class: state, x: at(from), y: 0, width: Math.max(0.7, at(to || now) - at(from)), height: 8 }, svg("title", {}, `${state} from ${day(from)} ${clock(from, 0)} ${to ? `for ${duration(to - from)}` : "until now"}`)));
  return svg("svg", { class: "history", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": plural(bands.length, "outage") }, b.state === "no answer" ? [] : [svg("rect", { class: "up", x: 0, y: 0, width: 100, height: 8 }), bands]);
}

function drawFleet() {
  const wanted = $("find").value.toLowerCase();
  const all = [...fleet.nodes].sort((a, b) => troubleOf(b) - troubleOf(a) || a.name.localeCompare(b.name, "en", { numeric: true }));
  const shown = all.filter((n) => !wanted || [n.name, n.report?.version, n.report?.config.id, n.error, ...backendsOf(n).flatMap((b) => [b.name, b.state])].some((t) => t?.toLowerCase().includes(wanted)));
  const up = all.filter((n) => troubleOf(n) === 0).length;
  const link = $("link");
  link.className = fleet.problem ? "lost" : up === all.length ? "up" : "slow";
  link.textContent = fleet.problem || `${number(up)} of ${number(all.length)} up`;
  $("facts").textContent = shown.length === all.length ? "" : `${number(shown.length)} of ${number(all.length)} shown`;
  $("differs").replaceChildren(el("ul", {}, minorities("configuration", (n) => n.report?.config.id), minorities("criproxy", (n) => n.report?.version),
    all.filter((n) => n.clockOff).slice(0, 5).map((n) => el("li", { class: "slow" }, `${n.name}: its clock is ${duration(Math.abs(n.clockOff))} ${n.clockOff > 0 ? "ahead of" : "behind"} this machine's`))));
  $("cells").replaceChildren(...shown.flatMap((n) => backendsOf(n).map((b) => el("a", { href: pageOf(n), class: `square ${kindOf(b.state)}`, title: `${n.name} ${b.name} ${b.state}`, "aria-label": `${n.name} ${b.name} ${b.state}` }))));
  $("rows").replaceChildren(...shown.flatMap((n) => backendsOf(n).map((b, i) => el("tr", { class: kindOf(b.state) },
    el("td", {}, i === 0 ? el("a", { href: pageOf(n) }, n.name) : ""), el("td", {}, b.name),
    el("td", { title: b.error }, signOf(kindOf(b.state)), b.state, b.error ? el("span", { class: "soft" }, ` ${b.error.slice(0, 160)}`) : i === 0 && n.report && !n.report.ready ? el("span", { class: "bad" }, " criproxy is not ready") : ""),
    el("td", {}, agoOf(n, b.since)), el("td", { class: "num" }, b.pods ?? ""), el("td", {}, historyOf(n, b)),
    el("td", { title: n.report?.config.error }, i === 0 && n.report ? [el("span", { class: "mono" }, n.report.config.id), ` ${agoOf(n, n.report.config.loaded)} ago`, n.report.config.error ? el("span", { class: "bad" }, ", a newer one was refused") : ""] : ""),
    el("td", {}, i === 0 ? n.report?.version : "")))));
  document.body.dataset.drawn = fleet.version;
}

// look asks for what has changed, while the page is looked at.
async function look() {
  try {
    if (!document.hidden) {
      const answer = await fetch(`nodes?after=${fleet.version}`);
      if (answer.status === 200) {
        Object.assign(fleet, { problem: "", fragment: "" }, await answer.json());
        drawFleet();
      } else if (answer.status !== 204) throw new Error(await answer.text());
    }
  } catch (e) {
    $("link").className = "lost";
    $("link").textContent = e instanceof TypeError ? "criproxy ui has ended" : e.message;
    fleet.version = -1;
  }
  setTimeout(look, fleet.nodes.some((n) => !n.asked) || !fleet.nodes.length ? 500 : LOOK);
}

$("find").addEventListener("input", drawFleet);
$("theme").addEventListener("click", theme);
document.addEventListener("keydown", (e) => {
  if (e.key === "/" && e.target !== $("find")) {
    e.preventDefault();
    $("find").focus();
  }
});
setInterval(drawFleet, 60_000); // how long ago things were
look();
