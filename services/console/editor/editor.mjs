// An editor of SQL in place of a text field, which it keeps up to date: what is sent is the field.
//
// It stands in a shadow tree: there CodeMirror adopts its style sheets, which a strict Content-Security-Policy allows.
import { autocompletion, closeBrackets, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { PostgreSQL, sql } from "@codemirror/lang-sql";
import { bracketMatching, HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { EditorState } from "@codemirror/state";
import { EditorView, keymap } from "@codemirror/view";
import { tags } from "@lezer/highlight";

const colors = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--link)", fontWeight: "600" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--green)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--amber)" },
  { tag: tags.comment, color: "var(--quiet)", fontStyle: "italic" },
]);
const look = EditorView.theme({
  "&": { color: "var(--text)", background: "var(--card)", fontSize: "14px" },
  "&.cm-focused": { outline: "3px solid var(--blue)" },
  ".cm-scroller": { minHeight: "9rem", maxHeight: "26rem", overflow: "auto", fontFamily: "ui-monospace, Menlo, monospace" },
  ".cm-content": { caretColor: "var(--text)" },
  ".cm-tooltip": { background: "var(--card)", border: "1px solid var(--line)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { background: "var(--link)", color: "var(--ground)" },
});

/** Open an editor over a field; `schema` has the columns of each table, to complete. */
export const openEditor = (field, schema) => {
  const host = document.createElement("div");
  host.className = "editor";
  const root = host.attachShadow({ mode: "open" });
  field.after(host);
  field.hidden = true;
  field.required = false; // a field that is not seen cannot ask for anything
  const run = () => {
    field.form.requestSubmit();
    return true;
  };
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: field.value,
      extensions: [
        history(), bracketMatching(), closeBrackets(), autocompletion(), EditorView.lineWrapping,
        sql({ dialect: PostgreSQL, schema }), syntaxHighlighting(colors), look,
        keymap.of([{ key: "Mod-Enter", run }, ...completionKeymap, ...historyKeymap, ...defaultKeymap]),
        EditorView.contentAttributes.of({ "aria-label": "SQL", autocapitalize: "off", spellcheck: "false" }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) field.value = update.state.doc.toString();
        }),
      ],
    }),
  });
  return {
    insert: (text) => {
      view.dispatch(view.state.replaceSelection(text));
      view.focus();
    },
    replace: (text) => {
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } });
      view.focus();
    },
  };
};
