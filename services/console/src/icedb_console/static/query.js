// The query box: an editor in place of the field, columns to pick, what was run before, and an address to share.
"use strict";

(() => {
  const field = document.getElementById("sql");
  if (!field) return;
  const KEY = "icedb.queries";
  const MOST = 50;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  const schema = Object.fromEntries(all("[data-table]").map((table) => (
    [table.dataset.table, all("[data-insert]", table).map((each) => each.dataset.insert)]
  )));
  const editor = icedbEditor.openEditor(field, schema);
  const quote = (name) => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`);
  all("[data-insert]").forEach((each) => each.addEventListener("click", () => editor.insert(quote(each.dataset.insert))));

  const read = () => {
    try {
      const known = JSON.parse(localStorage.getItem(KEY));
      return Array.isArray(known) ? known.filter((each) => typeof each === "string") : [];
    } catch {
      return [];
    }
  };
  const keep = (queries) => {
    try {
      localStorage.setItem(KEY, JSON.stringify(queries.slice(0, MOST)));
    } catch { /* full, or turned off */ }
  };
  const show = () => {
    const history = document.getElementById("history");
    if (!history) return;
    history.hidden = !read().length;
    history.querySelector("ol").replaceChildren(...read().map((sql) => {
      const [item, button] = ["li", "button"].map((name) => document.createElement(name));
      button.type = "button";
      button.className = "code";
      button.textContent = sql;
      button.addEventListener("click", () => editor.replace(sql));
      item.append(button);
      return item;
    }));
  };
  field.form.addEventListener("submit", () => {
    const sql = field.value.trim();
    if (sql) keep([sql, ...read().filter((each) => each !== sql)]);
  });
  document.getElementById("forget")?.addEventListener("click", () => {
    localStorage.removeItem(KEY);
    show();
  });
  show();
  const link = document.getElementById("link");
  if (link) history.replaceState(null, "", link.href);
})();
