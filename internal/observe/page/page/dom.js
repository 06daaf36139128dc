// Elements and texts. Recorded data becomes text, never markup.

const $ = (id) => document.getElementById(id);

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== undefined && child !== null && child !== false && child !== "") node.append(child);
  }
  return node;
}

const el = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const number = (n) => n.toLocaleString("en-US");
const plural = (n, one, many = one + "s") => `${number(n)} ${n === 1 ? one : many}`;

const two = (n) => String(n).padStart(2, "0");

// three prints x with three significant digits.
const three = (x) => (x < 9.995 ? x.toFixed(2) : x < 99.95 ? x.toFixed(1) : x.toFixed(0));

// duration prints milliseconds.
function duration(ms) {
  if (ms < 0.9995) return `${Math.round(ms * 1000)} µs`;
  if (ms < 999.5) return `${three(ms)} ms`;
  const s = ms / 1000;
  if (s < 99.95) return `${three(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${two(Math.floor(s % 60))} s`;
  return `${Math.floor(s / 3600)} h ${two(Math.floor((s % 3600) / 60))} m`;
}

const bytes = (n) => (n < 10_000 ? `${number(n)} B` : n < 1_000_000 ? `${(n / 1e3).toFixed(1)} kB` : `${(n / 1e6).toFixed(1)} MB`);

// clock prints a time of the day, with digits behind the second.
function clock(ms, digits = 3) {
  const t = new Date(ms);
  const s = `${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
  return digits ? `${s}.${String(Math.floor(ms) % 1000).padStart(3, "0").slice(0, digits)}` : s;
}

const day = (ms) => {
  const t = new Date(ms);
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())}`;
};

// shortID shortens the hexadecimal end of an id for people.
const shortID = (id) => id.replace(/[0-9a-f]{14,}$/, (hex) => hex.slice(0, 13));

// ticks returns round times between two others, about n of them, and how many digits they need.
function ticks(from, to, n) {
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 144e5, 432e5, 864e5];
  const at = steps.findIndex((s) => (to - from) / s <= n);
  // In a time shorter than the step there may be no time to write.
  const step = at < 0 ? Math.ceil((to - from) / n / 864e5) * 864e5 : steps[at > 0 && steps[at] > to - from ? at - 1 : at];
  const all = [];
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) all.push(t);
  return { all, digits: step < 10 ? 3 : step < 100 ? 2 : step < 1000 ? 1 : 0 };
}

// tip shows a tooltip about the element under the mouse.
function tip(event, ...content) {
  const box = $("tip");
  if (!event) {
    box.hidden = true;
    return;
  }
  box.replaceChildren(...content);
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  box.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
}

// theme exchanges light and dark.
function theme() {
  const { dataset } = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
  dataset.theme = (dataset.theme || (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
}

// listOf lists names with their values, without empty ones.
const listOf = (pairs) => el("dl", {}, pairs.filter(([, v]) => v !== undefined && v !== "" && v !== null).map(([name, v]) => [el("dt", {}, name), el("dd", {}, String(v))]));

// signOf is the sign of a condition, whose shape says the same as its colour: a circle is up, a triangle slow, a square gone.
const signOf = (kind) => el("i", { class: `dot ${kind}`, "aria-hidden": "true" });

// chip marks a call with a word.
const chip = (kind, word) => el("span", { class: `chip ${kind}` }, word);

// copyButton copies what text() returns, and says so.
const copyButton = (label, text, title = "") => el("button", { type: "button", class: "copy", title, onclick: async (e) => {
  const button = e.currentTarget, copied = await text();
  try {
    await navigator.clipboard.writeText(copied);
  } catch { // not allowed here
    const box = el("textarea", {}, copied);
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
  button.dataset.copied = copied;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = label), 1200);
} }, label);

// narrow says whether the style is that for a telephone, on which the page scrolls, below the tabs, and nothing in it.
const narrow = () => matchMedia("(max-width: 620px), (max-width: 1100px) and (max-height: 500px)").matches;

// sightOf returns which part of a view is in sight: where it begins, and how high it is.
function sightOf(view) {
  if (!narrow()) return { top: view.scrollTop, high: view.clientHeight };
  const tabs = $("tabs").offsetHeight;
  return { top: tabs - view.getBoundingClientRect().top, high: innerHeight - tabs };
}

// scrollView makes the part of a view that is in sight begin at top.
function scrollView(view, top) {
  if (!narrow()) view.scrollTop = top;
  else if (view.checkVisibility()) scrollBy(0, top - sightOf(view).top);
}

// onScroll calls f when another part of a view is in sight.
function onScroll(view, f) {
  for (const one of [view, window]) one.addEventListener("scroll", () => view.checkVisibility() && f());
}

// quoted returns a word for a shell.
const quoted = (v) => (/^[\w.,:/@%+=-]+$/.test(v) ? v : `'${v.replace(/'/g, "'\\''")}'`);
