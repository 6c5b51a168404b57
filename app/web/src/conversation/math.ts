// Formulas in Markdown: marked extensions that find them. They show as source until KaTeX has typeset them.

import type { TokenizerAndRendererExtension, Tokens } from "marked";

import { escapeHtml } from "./escape-html.ts";

const MAX_FORMULA_CHARACTERS = 5000;
/** How many characters of a paragraph are searched for a formula. */
const MAX_LOOKAHEAD_CHARACTERS = 20_000;
const INLINE: readonly RegExp[] = [/^\$\$((?:[^\\$\n]|\\.|\n(?!\s*\n))+)\$\$/, /^\\\[((?:[^\\\n]|\\[^\]]|\n(?!\s*\n))+?)\\\]/];
const BLOCK: readonly RegExp[] = [/^ {0,3}\$\$((?:[^\\$]|\\[^]|\$(?!\$))+?)\$\$[ \t]*(?:\n|$)/, /^ {0,3}\\\[((?:[^\\]|\\[^\]])+?)\\\][ \t]*(?:\n|$)/];
const PARENTHESES = /^\\\(((?:[^\\\n]|\\[^)])+?)\\\)/;
const DOLLARS = /^\$(?![\s$])((?:[^\\$\n]|\\[^\n])+?)(?<![\s\\])\$(?![\d$])/;
/** "$5 to 6$" is a price, "$5 + x$" a formula: a number that is followed by words starts no formula. */
const PRICE = /^\d[\d,.]*(?:[a-z]{0,3}\b)?(?:[\s,.;:/–-]|$)/;
const WORDS = /^[\sA-Za-z0-9,.;:/–'’%-]*$/;

/** The formula between single dollars at the start of `text`, or null for a price or plain text. */
export function dollarFormula(text: string): string | null {
  const formula = DOLLARS.exec(text.slice(0, MAX_FORMULA_CHARACTERS))?.[1];
  if (formula === undefined) return null;
  return WORDS.test(formula) && PRICE.test(formula) && /\s/.test(formula) ? null : formula;
}

/** The text before the first empty line, at most `most` characters; no formula spans an empty line. */
function paragraphOf(text: string, most: number): string {
  const near = text.slice(0, most);
  const end = near.indexOf("\n\n");
  return end < 0 ? near : near.slice(0, end + 1);
}

type Found = { raw: string; tex: string; display: boolean };

function inlineAt(rest: string): Found | null {
  const text = rest.slice(0, MAX_FORMULA_CHARACTERS);
  for (const pattern of INLINE) {
    const match = pattern.exec(text);
    if (match) return { raw: match[0], tex: match[1] ?? "", display: true };
  }
  const round = PARENTHESES.exec(text);
  if (round) return { raw: round[0], tex: round[1] ?? "", display: false };
  const tex = dollarFormula(text);
  return tex === null ? null : { raw: `$${tex}$`, tex, display: false };
}

function blockAt(rest: string): Found | null {
  const mark = /^ {0,3}(\$\$|\\\[)/.exec(rest);
  if (!mark) return null;
  const text = paragraphOf(rest, MAX_FORMULA_CHARACTERS);
  if (!text.includes(mark[1] === "$$" ? "$$" : "\\]", mark[0].length)) return null; // faster than the patterns
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

/** The source of a formula, which is shown until it is typeset, or for good if that fails. */
function source(given: Tokens.Generic): string {
  const { raw, display } = given as Tokens.Generic & { display: boolean };
  return `<span class="math${display ? " display" : ""}">${escapeHtml(raw.trim())}</span>`;
}

/** Extensions for marked: `$…$`, `$$…$$`, `\(…\)` and `\[…\]`. */
export const MATH: TokenizerAndRendererExtension[] = [
  {
    name: "mathBlock",
    level: "block",
    start: (text) => {
      const at = /\n {0,3}(?:\$\$|\\\[)/.exec(paragraphOf(text, MAX_LOOKAHEAD_CHARACTERS))?.index;
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

/** The TeX in the source of a formula without its delimiters, and whether it is a display formula. */
export function texOf(raw: string): { tex: string; display: boolean } {
  const display = raw.startsWith("$$") || raw.startsWith("\\[");
  const marks = display || raw.startsWith("\\") ? 2 : 1;
  return { tex: raw.slice(marks, -marks).trim(), display };
}
