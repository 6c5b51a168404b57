// `<details>` in Markdown: a part that is closed until somebody opens it, with Markdown in it. Other HTML stays text.

import type { TokenizerAndRendererExtension, Tokens } from "marked";

const OPENING = /^ {0,3}<details( open)?>[ \t]*\n?(?:\s{0,8}<summary>((?:[^<\n]|<(?!\/?summary>)){0,500})<\/summary>)?/i;
const EITHER = /<(\/?)details(?: open)?>/gi;
/** Deeper ones stay text, because each level is read again. */
const MAX_DEPTH = 4;
const UNTITLED = "Details";

let depth = 0;

/** The position of the end tag that belongs to the text before, and the position after it. Without one, the end of the text. */
function endOf(text: string, from: number): { body: number; end: number } {
  let open = 1;
  EITHER.lastIndex = from;
  for (let tag = EITHER.exec(text); tag; tag = EITHER.exec(text)) {
    open += tag[1] ? -1 : 1;
    if (open === 0) return { body: tag.index, end: EITHER.lastIndex };
  }
  return { body: text.length, end: text.length };
}

/** Whether the text ends within details that are not closed yet. */
export function isInDetails(text: string): boolean {
  let open = 0;
  EITHER.lastIndex = 0;
  for (const [, closing] of text.matchAll(EITHER)) open = Math.max(0, open + (closing ? -1 : 1));
  return open > 0;
}

/** An extension for marked. */
export const DETAILS: TokenizerAndRendererExtension = {
  name: "details",
  level: "block",
  childTokens: ["summary", "tokens"],
  tokenizer(text) {
    const opening = depth < MAX_DEPTH ? OPENING.exec(text) : null;
    if (!opening) return undefined;
    const { body, end } = endOf(text, opening[0].length);
    const line = /^[ \t]*\n?/.exec(text.slice(end, end + 200))?.[0] ?? "";
    depth += 1;
    try {
      const tokens = this.lexer.blockTokens(text.slice(opening[0].length, body).replace(/^\s*\n/, ""), []);
      const summary = this.lexer.inlineTokens((opening[2] ?? "").trim() || UNTITLED, []);
      return { type: "details", raw: text.slice(0, end) + line, isOpen: opening[1] !== undefined, summary, tokens };
    } finally {
      depth -= 1;
    }
  },
  renderer(given) {
    const { isOpen, summary, tokens } = given as Tokens.Generic & { isOpen: boolean; summary: Tokens.Generic[]; tokens: Tokens.Generic[] };
    return `<details${isOpen ? " open" : ""}><summary>${this.parser.parseInline(summary)}</summary>${this.parser.parse(tokens)}</details>\n`;
  },
};
