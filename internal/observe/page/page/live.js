// New calls, from the server of the page.

const live = { on: false, follow: true, moving: false, waiting: [], at: "" };

function connectLive() {
  $("link").hidden = $("follow").hidden = false;
  document.addEventListener("visibilitychange", listen);
  listen();
}

// listen asks for news while somebody looks. A hidden page costs nothing; when it is looked at again it asks for what it
// has missed.
function listen() {
  live.source?.close();
  live.source = null;
  if (document.hidden) return;
  const source = live.source = new EventSource(live.at ? `stream?after=${live.at}` : "stream");
  lost("connecting");
  source.addEventListener("info", (e) => {
    const info = JSON.parse(e.data);
    if (live.session !== undefined && live.session !== info.session) location.reload(); // the server has restarted
    live.session = info.session;
    model.info = info;
    facts();
    redraw();
  });
  source.addEventListener("calls", (e) => {
    live.at = e.lastEventId;
    wait(e);
  });
  source.addEventListener("rewritten", wait);
  for (const kind of ["story", "wrong"]) source.addEventListener(kind, (e) => { // of the same moment
    live[kind] = e.data;
    takeSoon();
  });
  source.addEventListener("status", (e) => {
    status.report = JSON.parse(e.data);
    talk.made = -1;
    openStatus();
    redraw();
  });
  source.addEventListener("link", (e) => {
    const l = JSON.parse(e.data);
    lost(l.up ? "" : l.error);
    if (l.up) $("link").textContent = `process ${l.pid}`;
  });
  source.onerror = () => lost(source.readyState === EventSource.CLOSED ? "criproxy ui has ended" : "connecting anew");
}

// lost says why there is no news; "" if there is.
function lost(why) {
  const link = $("link");
  link.dataset.lost = why;
  link.className = why ? "lost" : "";
  if (why) link.textContent = why;
  redraw();
}

// wait puts calls, or what was rewritten in calls, behind what has come before: that has the calls.
function wait(e) {
  live.waiting.push(e.data);
  takeSoon();
}

// takeSoon takes in what has come, with what else comes soon.
function takeSoon() {
  live.timer ??= setTimeout(takeIn, 50);
}

function takeIn() {
  live.timer = undefined;
  const all = live.waiting, { story, wrong } = live;
  live.waiting = [];
  live.story = live.wrong = undefined;
  if (story) takeStory(JSON.parse(story));
  if (wrong) findings.report = JSON.parse(wrong);
  for (const data of all) {
    const one = JSON.parse(data);
    if (one.r) ingest(one);
    else takeRewritten(one);
  }
  openStatus();
  facts();
  more();
  openWanted();
}

// openStatus opens Status, once, if there is trouble when the page opens. The story tells of it at once; the report of
// criproxy waits for a runtime that is slow.
function openStatus() {
  if (live.opened) return;
  const trouble = worstOf(conditionsOf()) !== "up";
  if (!trouble && !status.report) return;
  live.opened = true;
  if (trouble && !state.viewed && !location.hash) {
    showView("status");
    scrollTo(0, 0); // a telephone has followed the calls, and the conditions are in the head
    state.viewed = false; // nobody chose it
  }
}

function setFollow(on) {
  live.follow = on;
  $("follow").setAttribute("aria-pressed", on ? "true" : "false");
  if (on) redraw();
}

// loadOlder asks for calls from before those of this page. When they are there the page begins anew, where it is now.
function loadOlder() {
  if (!older() || model.info.loading) return;
  state.top = live.follow ? 0 : table.list.find((one) => one.id)?.id || 0;
  saveState();
  fetch("older");
}

function drawOlder() {
  const button = $("older");
  button.hidden = !older();
  button.disabled = Boolean(model.info.loading);
  button.textContent = model.info.loading ? "Loading" : "Older";
  button.title = notLoaded();
}
