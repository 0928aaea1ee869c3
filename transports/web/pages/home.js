// Keeps the first page up to date, sends its forms in place, and copies texts.
"use strict";
(() => {
  const MAX_OUTPUT = 64 * 1024; // characters of output that stay on the page, of each command
  const byId = (id) => document.getElementById(id);
  const result = byId("told");
  const sources = new WeakMap(); // a row → the HTML that it was made from
  const latest = new WeakMap(); // a part → its HTML as it came last
  const sending = new WeakSet(); // rows of which a form waits for its answer

  const showResult = (text, good) => {
    const line = document.createElement("p");
    line.className = good ? "done" : "problem";
    line.textContent = text;
    result.replaceChildren(line);
  };

  // Show times in the person's own time zone; the server writes UTC.
  const localise = (within) => {
    const today = new Date().toDateString();
    for (const time of within.querySelectorAll("time[datetime]")) {
      const when = new Date(time.dateTime);
      if (Number.isNaN(when.getTime())) continue;
      const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit" };
      const day = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" };
      time.textContent = when.toDateString() === today ? when.toLocaleTimeString([], clock) : when.toLocaleString([], day);
      time.title = when.toLocaleString();
    }
  };

  const toEnd = (pre) => { pre.scrollTop = pre.scrollHeight; };

  // When a row is replaced, keep what the person has opened and typed, and the output shown so far.
  const carryOver = (before, after) => {
    for (const old of before.querySelectorAll("input[id], select, textarea")) {
      const fresh = [...after.querySelectorAll(old.localName)].find((each) => each.id === old.id && each.name === old.name);
      if (!fresh || old.type === "hidden") continue;
      if (old.type === "radio" || old.type === "checkbox") fresh.checked = old.checked;
      else fresh.value = old.value;
    }
    for (const old of before.querySelectorAll("details[data-chosen]")) {
      const fresh = after.querySelector(`#${CSS.escape(old.id)}`);
      if (!fresh) continue;
      fresh.open = old.open;
      fresh.dataset.chosen = "";
    }
    for (const old of before.querySelectorAll("[data-kept]")) {
      const fresh = after.querySelector(`#${CSS.escape(old.id)}`);
      if (fresh && old.firstChild) fresh.replaceWith(old);
    }
  };

  // Replace the rows of a part that have changed, except one that has the focus, or whose form is being sent.
  const updatePart = (part, html) => {
    latest.set(part, html);
    const template = document.createElement("template");
    template.innerHTML = html; // our own server's, which escapes what is foreign
    const rows = [...template.content.children];
    const ids = new Set(rows.map((row) => row.id));
    for (const old of [...part.children]) if (!ids.has(old.id)) old.remove();
    rows.forEach((row, place) => {
      const source = row.outerHTML;
      let current = [...part.children].find((old) => old.id === row.id);
      const isUsed = current && (sending.has(current) || current.contains(document.activeElement));
      if (!current || (sources.get(current) !== source && !isUsed)) {
        localise(row);
        sources.set(row, source);
        if (current) {
          carryOver(current, row);
          current.replaceWith(row);
        }
        current = row;
      }
      if (part.children[place] !== current) part.insertBefore(current, part.children[place] || null);
    });
  };

  // What the person has opened or closed stays so. Anything else the server folds as the list grows.
  document.addEventListener("click", (event) => {
    const fold = event.target.closest("summary")?.parentElement;
    if (fold && fold.id) fold.dataset.chosen = "";
  });

  const append = ({ id, text, first }) => {
    const pre = byId(`output-${id}`);
    if (!pre) return;
    const follows = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
    const whole = (first ? "" : pre.textContent) + text;
    pre.textContent = whole.slice(-MAX_OUTPUT);
    if (follows || first) toEnd(pre);
  };

  const copy = async (button) => {
    const from = byId(button.dataset.copies);
    try {
      await navigator.clipboard.writeText(from.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(from); // then a key press copies it
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  };

  // Close the second step of a button by Escape, or by a click elsewhere.
  const closeSteps = (but) => {
    for (const step of document.querySelectorAll("details.confirm[open]")) {
      if (but && step.contains(but)) continue;
      if (!but && step.contains(document.activeElement)) step.querySelector("summary").focus();
      step.open = false;
    }
  };
  document.addEventListener("click", (event) => closeSteps(event.target));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeSteps(null); });

  const send = async (form, button) => {
    const body = new URLSearchParams(new FormData(form, button));
    const part = form.closest("[id^=part-]"), row = form.closest("[id^=part-] > *");
    sending.add(row);
    button.disabled = true;
    try {
      const answer = await fetch(form.action, { method: "POST", body, headers: { accept: "application/json" } });
      if (answer.redirected) {
        location.assign(answer.url); // to sign in
        return;
      }
      showResult((await answer.json()).told, answer.ok);
      if (!answer.ok) return;
      form.reset();
      const fold = form.closest("details[data-chosen]");
      if (fold) {
        fold.open = false;
        delete fold.dataset.chosen;
      }
      sources.delete(row);
      closeSteps(null);
      result.focus({ preventScroll: true }); // the row goes: from here the Tab key leads to the next one
    } catch {
      showResult("The server could not be reached. Reload this page and try again.", false);
    } finally {
      button.disabled = false;
      sending.delete(row);
      if (latest.has(part)) updatePart(part, latest.get(part));
    }
  };

  // Count what waits in the tab's title and icon, and notify a person who looks elsewhere, if they allow that.
  const title = document.title.replace(/^\(\d+\) /, "");
  const icon = document.querySelector("link[rel=icon]");
  const plainIcon = icon.href;
  const known = new Set([...document.querySelectorAll(".question")].map((row) => row.id));
  const countWaiting = (notifies) => {
    const waiting = [...document.querySelectorAll(".question")];
    document.title = waiting.length ? `(${waiting.length}) ${title}` : title;
    icon.href = waiting.length ? icon.dataset.waiting : plainIcon;
    for (const row of waiting) {
      if (known.has(row.id)) continue;
      known.add(row.id);
      if (notifies && (document.hidden || !document.hasFocus())) notify(row);
    }
  };
  const notify = (row) => {
    if (!window.Notification || Notification.permission !== "granted") return;
    try {
      const text = row.querySelector("h3").textContent.trim().replace(/\s+/g, " ");
      const shown = new Notification(text, { body: row.dataset.tool, tag: row.id, icon: icon.dataset.waiting });
      shown.onclick = () => {
        window.focus();
        row.scrollIntoView();
        shown.close();
      };
    } catch {
      // some browsers show notifications of service workers only
    }
  };
  const offerNotifications = (button) => {
    if (!button || !window.Notification || Notification.permission !== "default") return;
    button.hidden = false;
    button.addEventListener("click", async () => {
      const permission = await Notification.requestPermission();
      button.hidden = permission !== "default";
      if (permission === "granted") showResult("Your browser will notify you when something waits for you.", true);
      if (permission === "denied") showResult("Your browser blocks notifications from this page. Its settings can allow them.", false);
    });
  };

  const RESTART = 1_500; // milliseconds without the server before the page says so: most restarts are shorter
  let unreachable = 0;
  const showStatus = (text) => {
    const sign = byId("live"), notice = byId("unreachable");
    if (text === "live") {
      clearTimeout(unreachable);
      unreachable = 0;
      notice.hidden = true;
    } else unreachable ||= setTimeout(() => { notice.hidden = false; }, RESTART);
    sign.hidden = false;
    sign.textContent = text;
    sign.classList.toggle("on", text === "live");
  };
  const receive = (kind, data, leads) => {
    if (kind === "output") append(data);
    const part = kind === "part" && byId(`part-${data.name}`);
    if (!part) return;
    updatePart(part, data.html);
    const section = part.closest("section");
    if (section) section.hidden = !part.children.length;
    const connects = ["apps", "calls", "sessions"].includes(data.name) && part.children.length;
    if (connects && !("connected" in document.body.dataset)) location.reload(); // the first app is connected
    if (data.name === "questions") countWaiting(leads);
  };
  const outputs = () => [...document.querySelectorAll("pre[data-kept]")]
    .map((pre) => ({ id: pre.id.slice("output-".length), text: pre.textContent, first: true }));

  for (const row of document.querySelectorAll("[id^=part-] > *")) sources.set(row, row.outerHTML);
  localise(document);
  document.querySelectorAll("pre[data-kept]").forEach(toEnd);
  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", () => void copy(button));
  }
  const address = document.body.dataset.events;
  if (address) {
    document.addEventListener("submit", (event) => {
      const form = event.target;
      if (!form.closest("[id^=part-]")) return;
      event.preventDefault();
      void send(form, event.submitter);
    });
    offerNotifications(byId("notify"));
    followEvents(address, `toolgate ${address} ${document.body.dataset.visitor}`, { receive, show: showStatus, outputs });
  }
})();
