// New calls, from the server of the page.

const live = { on: false, follow: true, moving: false, waiting: [] };

function connectLive() {
  live.on = true;
  const link = $("link");
  link.hidden = $("follow").hidden = false;
  link.textContent = "connecting";
  const source = new EventSource("stream");
  source.addEventListener("info", (e) => {
    const info = JSON.parse(e.data);
    if (live.session !== undefined && live.session !== info.session) location.reload(); // the server has restarted
    live.session = info.session;
    model.info = info;
    facts();
  });
  source.addEventListener("calls", (e) => {
    live.waiting.push(e.data);
    if (live.waiting.length === 1) requestAnimationFrame(takeIn);
  });
  source.addEventListener("status", (e) => {
    status.report = JSON.parse(e.data);
    talk.made = -1;
    redraw();
  });
  source.addEventListener("panels", (e) => takePanels(JSON.parse(e.data)));
  source.addEventListener("metrics", (e) => takeMetrics(JSON.parse(e.data)));
  source.addEventListener("link", (e) => {
    const l = JSON.parse(e.data);
    link.className = l.up ? "up" : "down";
    link.textContent = l.up ? `process ${l.pid}` : l.error;
  });
  source.onerror = () => {
    link.className = "down";
    link.textContent = source.readyState === EventSource.CLOSED ? "criproxy ui has ended" : "connecting anew";
  };
}

function takeIn() {
  const all = live.waiting;
  live.waiting = [];
  for (const data of all) ingest(JSON.parse(data));
  facts();
  more();
}

function setFollow(on) {
  live.follow = on;
  $("follow").setAttribute("aria-pressed", on ? "true" : "false");
  if (on) redraw();
}
