// Formulas in Markdown: found by marked, shown as their source until KaTeX has made MathML of them.

import type { TokenizerAndRendererExtension, Tokens } from "marked";

import { escaped } from "./escaping.ts";

const LONGEST = 5000;
/** How far a paragraph is searched for a formula that ends it. */
const AHEAD = 20_000;
const INLINE: readonly RegExp[] = [/^\$\$((?:[^\\$\n]|\\.|\n(?!\s*\n))+)\$\$/, /^\\\[((?:[^\\\n]|\\[^\]]|\n(?!\s*\n))+?)\\\]/];
const BLOCK: readonly RegExp[] = [/^ {0,3}\$\$((?:[^\\$]|\\[^]|\$(?!\$))+?)\$\$[ \t]*(?:\n|$)/, /^ {0,3}\\\[((?:[^\\]|\\[^\]])+?)\\\][ \t]*(?:\n|$)/];
const PARENTHESES = /^\\\(((?:[^\\\n]|\\[^)])+?)\\\)/;
const DOLLARS = /^\$(?![\s$])((?:[^\\$\n]|\\[^\n])+?)(?<![\s\\])\$(?![\d$])/;
/** "$5 to 6$" is about money, "$5 + x$" is not: a number that words follow makes no formula. */
const PRICE = /^\d[\d,.]*(?:[a-z]{0,3}\b)?(?:[\s,.;:/–-]|$)/;
const WORDS = /^[\sA-Za-z0-9,.;:/–'’%-]*$/;

/** The formula between single dollars at the beginning of `text`, or null if what stands there is money or plain text. */
export function dollars(text: string): string | null {
  const found = DOLLARS.exec(text.slice(0, LONGEST))?.[1];
  if (found === undefined) return null;
  return WORDS.test(found) && PRICE.test(found) && /\s/.test(found) ? null : found;
}

/** What stands before the first empty line, and not more than so many letters of it; nothing here goes on behind one. */
function paragraphOf(text: string, most: number): string {
  const near = text.slice(0, most);
  const end = near.indexOf("\n\n");
  return end < 0 ? near : near.slice(0, end + 1);
}

type Found = { raw: string; tex: string; display: boolean };

function inlineAt(rest: string): Found | null {
  const text = rest.slice(0, LONGEST);
  for (const pattern of INLINE) {
    const match = pattern.exec(text);
    if (match) return { raw: match[0], tex: match[1] ?? "", display: true };
  }
  const round = PARENTHESES.exec(text);
  if (round) return { raw: round[0], tex: round[1] ?? "", display: false };
  const tex = dollars(text);
  return tex === null ? null : { raw: `$${tex}$`, tex, display: false };
}

function blockAt(rest: string): Found | null {
  const mark = /^ {0,3}(\$\$|\\\[)/.exec(rest);
  if (!mark) return null;
  const text = paragraphOf(rest, LONGEST);
  if (!text.includes(mark[1] === "$$" ? "$$" : "\\]", mark[0].length)) return null; // sooner than the patterns can tell
  for (const pattern of BLOCK) {
    const match = pattern.exec(text);
    if (match && !/\n\s*\n/.test(match[1] ?? "")) return { raw: match[0], tex: match[1] ?? "", display: true };
  }
  return null;
}

function token(name: string, found: Found | null): Tokens.Generic | undefined {
  if (!found) return undefined;
  return { type: name, raw: found.raw, tex: found.tex.trim(), display: found.display };
}

/** A formula as it is until it is typeset, or for good if it can't be. */
function source(given: Tokens.Generic): string {
  const { raw, display } = given as Tokens.Generic & { display: boolean };
  return `<span class="math${display ? " display" : ""}">${escaped(raw.trim())}</span>`;
}

/** Extensions for marked: `$…$`, `$$…$$`, `\(…\)` and `\[…\]`. */
export const MATH: TokenizerAndRendererExtension[] = [
  {
    name: "mathBlock",
    level: "block",
    start: (text) => {
      const at = /\n {0,3}(?:\$\$|\\\[)/.exec(paragraphOf(text, AHEAD))?.index;
      return at === undefined ? undefined : at + 1;
    },
    tokenizer: (text) => token("mathBlock", blockAt(text)),
    renderer: (given) => `<p>${source(given)}</p>\n`,
  },
  {
    name: "math",
    level: "inline",
    start: (text) => /(?<![\w$\\])\$|\\[([]/.exec(text)?.index,
    tokenizer: (text) => (text.startsWith("$") || text.startsWith("\\") ? token("math", inlineAt(text)) : undefined),
    renderer: source,
  },
];

/** The TeX in the source of a formula, without what marks it as one, and whether it stands by itself. */
export function texOf(raw: string): { tex: string; display: boolean } {
  const display = raw.startsWith("$$") || raw.startsWith("\\[");
  const marks = display || raw.startsWith("\\") ? 2 : 1;
  return { tex: raw.slice(marks, -marks).trim(), display };
}
