// Follow the first page's event stream. Of a browser's tabs one holds the stream and passes its events on: browsers
// allow a server few connections, and a tab in the background must stay open to questions.
"use strict";
const followEvents = (address, name, { receive, show, outputs }) => {
  const RETRY = 5_000, LONGEST = 120_000; // milliseconds until a refused stream is tried again
  const own = crypto.getRandomValues(new Uint32Array(2)).join("-");
  const parts = new Map(); // name → the newest HTML, for tabs that come later
  const shares = Boolean(navigator.locks && window.BroadcastChannel);
  let source = null, channel = null, leave = null, retry = 0, wait = RETRY, status = "";

  // Handle an event of the stream here, and in the other tabs.
  const take = (kind, data) => {
    if (kind === "part") parts.set(data.name, data);
    if (kind === "status") status = data;
    if (channel) channel.postMessage({ kind, data });
    handle(kind, data, true);
  };
  const handle = (kind, data, leads) => {
    if (kind === "status") show(data);
    else if (kind === "bye") location.reload();
    else receive(kind, data, leads);
  };

  const open = () => {
    source = new EventSource(address);
    source.onopen = () => {
      wait = RETRY;
      take("status", "live");
    };
    source.onerror = async () => {
      take("status", "reconnecting …");
      if (source.readyState !== EventSource.CLOSED) return; // the browser tries again itself
      const asking = new AbortController(); // only fetch learns why
      const answer = await fetch(address, { signal: asking.signal }).catch(() => null);
      asking.abort();
      if (!leave) return;
      if (answer && answer.status === 401) take("bye", {});
      else retry = setTimeout(open, wait);
      wait = answer && answer.status === 503 ? RETRY : Math.min(2 * wait, LONGEST); // 503: its database is away
    };
    for (const kind of ["part", "output"]) {
      source.addEventListener(kind, (event) => take(kind, JSON.parse(event.data)));
    }
    source.addEventListener("bye", () => {
      source.close();
      take("bye", {});
    });
  };

  // A tab that comes later missed the newest events: repeat them for it alone.
  const hear = ({ kind, data, to }) => {
    if (kind === "hello" && source) {
      const news = [...[...parts.values()].map((part) => ["part", part]), ...outputs().map((text) => ["output", text])];
      for (const [each, repeated] of [...news, ["status", status]]) {
        channel.postMessage({ kind: each, data: repeated, to: data });
      }
    } else if (kind !== "hello" && !source && (!to || to === own)) handle(kind, data, false);
  };

  const start = () => {
    if (leave) return;
    if (!shares) {
      leave = () => {};
      open();
      return;
    }
    const ending = new AbortController();
    channel = new BroadcastChannel(name);
    channel.onmessage = (event) => hear(event.data);
    channel.postMessage({ kind: "hello", data: own });
    const held = new Promise((resolve) => {
      leave = () => {
        ending.abort();
        channel.close();
        resolve();
      };
    });
    const lead = () => {
      if (ending.signal.aborted) return undefined;
      open();
      return held;
    };
    navigator.locks.request(name, { signal: ending.signal }, lead).catch(() => {}); // aborted: the page is left
  };
  const stop = () => {
    clearTimeout(retry);
    if (source) source.close();
    if (leave) leave();
    source = channel = leave = null;
  };
  addEventListener("pagehide", stop);
  addEventListener("pageshow", start);
  start();
};
