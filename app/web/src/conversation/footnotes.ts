// Footnotes: `[^1]` in a text, and `[^1]: the note` where it is written. A reference leads to its note.

import type { TokenizerAndRendererExtension, Tokens } from "marked";

import { escapeHtml } from "./escape-html.ts";

const LABEL = String.raw`\[\^([^\]\s[^]{1,40})\]`;
const REFERENCE = new RegExp(`^${LABEL}(?!:)`);
/** A note goes on in lines that are neither empty nor another note, and in indented ones. */
const NOTE = new RegExp(String.raw`^ {0,3}${LABEL}:[ \t]*([^\n]*(?:\n(?!\s*\n|[ \t]*${LABEL}:)[^\n]+)*)(?:\n+|$)`);
const NAME = "Footnote";

/** Extensions for marked. Notes stay where they are written; references and notes have the same label. */
export const FOOTNOTES: TokenizerAndRendererExtension[] = [
  {
    name: "footnote",
    level: "block",
    childTokens: ["tokens"],
    tokenizer(text) {
      const match = text.startsWith("[^") || text.startsWith(" ") ? NOTE.exec(text) : null;
      if (!match) return undefined;
      return { type: "footnote", raw: match[0], label: match[1], tokens: this.lexer.inlineTokens((match[2] ?? "").replace(/\s*\n\s*/g, " ").trim(), []) };
    },
    renderer(given) {
      const { label, tokens } = given as Tokens.Generic & { label: string; tokens: Tokens.Generic[] };
      return `<div class="footnote" role="note" tabindex="-1"><span class="footnote-label">${escapeHtml(label)}</span> <span>${this.parser.parseInline(tokens)}</span></div>\n`;
    },
  },
  {
    name: "footnoteReference",
    level: "inline",
    tokenizer: (text) => {
      const match = text.startsWith("[^") ? REFERENCE.exec(text.slice(0, 50)) : null;
      return match ? { type: "footnoteReference", raw: match[0], label: match[1] } : undefined;
    },
    renderer(given) {
      const label = escapeHtml((given as Tokens.Generic & { label: string }).label);
      return `<sup><span class="footnote-reference" role="link" tabindex="0" aria-label="${NAME} ${label}">${label}</span></sup>`;
    },
  },
];

/** Goes to the note of a reference in `host` that was clicked, or on which Enter was pressed. */
export function followFootnote(event: Event, host: Element): void {
  if (event instanceof KeyboardEvent && event.key !== "Enter") return;
  const reference = event.target instanceof Element ? event.target.closest(".footnote-reference") : null;
  if (!reference) return;
  const label = [...host.querySelectorAll(".footnote-label")].find(({ textContent }) => textContent === reference.textContent);
  const note = label?.closest<HTMLElement>(".footnote");
  note?.scrollIntoView({ block: "nearest" });
  note?.focus({ preventScroll: true });
}
