// Keeps a page up to date, and says that a form was sent. Nothing of a page is made here: the server renders it anew,
// and its parts take the place of those that differ. Everything works without this script.
"use strict";

(() => {
  const state = document.getElementById("state");
  const source = document.body.dataset.live;

  const say = (word) => {
    if (state && state.textContent !== word) state.textContent = word;
  };

  /** Let a part of the newly rendered page take the place of the one that is shown, unless it is in use. */
  const exchange = (fresh) => {
    const shown = document.getElementById(fresh.id);
    if (!shown) return;
    const open = [...shown.querySelectorAll("details")].map((each) => each.open);
    fresh.querySelectorAll("details").forEach((each, at) => {
      if (at < open.length) each.open = open[at];
    });
    if (shown.isEqualNode(fresh)) return;
    const inUse = shown.contains(document.activeElement) && shown !== document.activeElement;
    const selected = document.getSelection();
    if (inUse || (selected && !selected.isCollapsed && shown.contains(selected.anchorNode))) return;
    const scrolled = [...shown.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
    shown.replaceWith(fresh);
    fresh.querySelectorAll(".scroll").forEach((each, at) => {
      if (at < scrolled.length) [each.scrollLeft, each.scrollTop] = scrolled[at];
    });
  };

  let isFetching = false;
  let isWanted = false;
  const refresh = async () => {
    isWanted = true;
    if (isFetching || document.hidden) return;
    isFetching = true;
    try {
      while (isWanted && !document.hidden) {
        isWanted = false;
        const answer = await fetch(location.pathname + location.search, { cache: "no-cache", redirect: "error" });
        if (!answer.ok) throw new Error(String(answer.status));
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        page.querySelectorAll("[data-part]").forEach((part) => exchange(document.adoptNode(part)));
        if (!page.querySelector("meta[http-equiv=refresh]") && document.querySelector("meta[http-equiv=refresh]")) {
          location.reload();
        }
        say("live");
      }
    } catch {
      say("not up to date");
    } finally {
      isFetching = false;
    }
  };

  if (source) {
    const events = new EventSource(source);
    events.addEventListener("open", () => say("live"));
    events.addEventListener("news", refresh);
    events.addEventListener("error", () => say("not up to date"));
    events.addEventListener("end", () => {
      events.close();
      say("signed out");
    });
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && isWanted) refresh();
    });
    addEventListener("pagehide", () => events.close());
  }

  document.querySelectorAll("form[data-busy]").forEach((form) => {
    const busy = document.getElementById("busy");
    form.addEventListener("submit", () => {
      if (!busy) return;
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
