// Keeps a page up to date, and says that a form was sent. Nothing of a page is made here: the server renders it anew,
// and its parts take the place of those that differ. Everything works without this script.
//
// "live" is said only while the stream says that the page is the same as what is known: it begins at the mark of the
// page itself, whenever that was loaded. A stream that falls silent, a page that cannot be fetched and a text that is
// selected are said, too.
"use strict";

(() => {
  const SILENCE_MS = 10000;
  const AGAIN_MS = 3000;
  const FOCUSABLE = "a, button, summary, [tabindex]";
  const state = document.getElementById("state");
  const source = document.body.dataset.live;
  const parts = (root) => [...root.querySelectorAll("[data-part]")];
  const arrived = new Map(parts(document).map((part) => [part.id, part.outerHTML]));

  const say = (word) => {
    if (state.textContent !== word) state.textContent = word;
  };

  /** Let a part of the newly rendered page take the place of the one that is shown. */
  const exchange = (fresh) => {
    if (arrived.get(fresh.id) === fresh.outerHTML) return;
    arrived.set(fresh.id, fresh.outerHTML);
    const shown = document.getElementById(fresh.id);
    const pairs = (selector) => {
      const others = [...fresh.querySelectorAll(selector)];
      return [...shown.querySelectorAll(selector)].map((each, at) => [each, others[at]]).filter((pair) => pair[1]);
    };
    const scrolled = pairs(".scroll").map(([old, other]) => [other, old.scrollLeft, old.scrollTop]);
    pairs("details").forEach(([old, other]) => { other.open = old.open; });
    const focused = shown.contains(document.activeElement) ? document.activeElement : null;
    const links = [...fresh.querySelectorAll(FOCUSABLE)];
    const again = !focused ? null : focused.href
      ? links.find((each) => each.href === focused.href)
      : links[[...shown.querySelectorAll(FOCUSABLE)].indexOf(focused)];
    shown.replaceWith(fresh);
    scrolled.forEach(([other, left, top]) => { [other.scrollLeft, other.scrollTop] = [left, top]; });
    if (again) again.focus({ preventScroll: true });
  };

  const isSelecting = () => {
    const selected = document.getSelection();
    return selected && !selected.isCollapsed && Boolean(selected.anchorNode.parentElement?.closest("[data-part]"));
  };

  let stream = null;
  let timer = 0;
  let isHeld = false;
  let isFetching = false;
  let isWanted = false;

  const disconnect = () => {
    clearTimeout(timer);
    if (stream) stream.close();
    stream = null;
    say("");
  };
  /** Say that the page may be old, and begin again, at what it shows, after a while. */
  const lose = (after) => {
    disconnect();
    say("not up to date");
    timer = setTimeout(connect, after);
  };
  const connect = () => {
    disconnect();
    if (document.hidden) return;
    const mark = document.getElementById("as-of").dataset.mark;
    stream = new EventSource(`${source}${source.includes("?") ? "&" : "?"}mark=${mark}`);
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => lose(0), SILENCE_MS);
    };
    heard();
    stream.addEventListener("same", () => {
      heard();
      if (!isFetching && !isHeld) say("live");
    });
    stream.addEventListener("late", () => {
      heard();
      if (!isFetching && !isHeld) say("the store answers slowly");
    });
    stream.addEventListener("news", () => {
      heard();
      refresh();
    });
    stream.addEventListener("error", () => lose(AGAIN_MS));
    stream.addEventListener("end", () => {
      disconnect();
      say("signed out");
    });
  };

  const refresh = async () => {
    isWanted = true;
    isHeld = isSelecting();
    if (isHeld) say("paused while text is selected");
    if (isFetching || isHeld) return;
    isFetching = true;
    try {
      while (isWanted) {
        isWanted = false;
        const asked = { cache: "no-cache", redirect: "error", signal: AbortSignal.timeout(SILENCE_MS) };
        const answer = await fetch(location.pathname + location.search, asked);
        if (!answer.ok) throw new Error(String(answer.status));
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = parts(page);
        if (fresh.map((each) => each.id).join() !== parts(document).map((each) => each.id).join()) {
          location.reload(); // another kind of page
          return;
        }
        fresh.forEach((part) => exchange(document.adoptNode(part)));
        document.dispatchEvent(new Event("refreshed"));
      }
    } catch {
      lose(AGAIN_MS);
    } finally {
      isFetching = false;
    }
  };

  if (source) {
    connect();
    // A page that is not seen is not kept up to date: browsers open few streams at once for all tabs together.
    document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
    addEventListener("pagehide", disconnect);
    addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
    document.addEventListener("selectionchange", () => { if (isHeld && !isSelecting()) refresh(); });
  }

  document.querySelectorAll("form[data-busy]").forEach((form) => {
    const busy = document.getElementById("busy");
    form.addEventListener("submit", (event) => {
      if (!busy || event.submitter?.name === "download") return; // a file leaves the page as it is
      busy.textContent = form.dataset.busy;
      busy.hidden = false;
      // Not before the form is sent: what is disabled is not sent with it.
      setTimeout(() => form.querySelectorAll("button").forEach((each) => { each.disabled = true; }));
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
  });
  addEventListener("pageshow", (event) => {
    if (event.persisted) document.querySelectorAll("button[disabled]").forEach((each) => { each.disabled = false; });
  });
})();
