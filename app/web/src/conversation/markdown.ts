// Markdown of answers as HTML: GitHub's flavour and formulas; HTML in it is text, and images are links.

import { Marked, Renderer } from "marked";
import type { Token } from "marked";

import { escaped } from "./escaping.ts";
import { MATH } from "./math.ts";

const SAFE = /^(?:https?:\/\/|mailto:)/i;
/** Tags without attributes that are taken as they are; in tables there is no other way to break a line. */
const HARMLESS = /^<(?:br ?\/?|\/?(?:sub|sup|kbd))>$/i;
const WORD = /^[\w+#.-]{1,40}/;

/** An address that may be a link: absolute, and of the web or of mail; else null. */
export function safe(href: string): string | null {
  return SAFE.test(href) ? href : null;
}

function link(href: string, title: string | null | undefined, inner: string): string {
  const said = title ? ` title="${escaped(title)}"` : "";
  return `<a href="${escaped(href)}"${said} target="_blank" rel="noopener noreferrer nofollow">${inner}</a>`;
}

/** Within a link an image is only its words: a link in a link would be none. */
function unlinked(tokens: Token[]): Token[] {
  return tokens.map((token) => (token.type === "image" ? { type: "text", raw: token.raw, text: String(token.text) } : token));
}

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: MATH,
  renderer: {
    html: ({ text, block }) => {
      if (HARMLESS.test(text.trim())) return text.trim();
      return block ? `<p>${escaped(text.trim())}</p>` : escaped(text);
    },
    heading({ depth, tokens }) {
      const level = Math.min(6, depth + 1); // the page's own heading is the first
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
    link({ href, title, tokens }) {
      const inner = this.parser.parseInline(unlinked(tokens));
      return safe(href) ? link(href, title, inner) : inner;
    },
    image: ({ href, title, text }) => (safe(href) ? link(href, title, escaped(text || "Image")) : escaped(text)),
    code: ({ text, lang }) => framed(text, languageOf(lang ?? "")),
    checkbox: ({ checked }) => `<span class="box${checked ? " checked" : ""}" role="img" aria-label="${checked ? "Done" : "Open"}"></span> `,
    table(token) {
      return `<div class="table" tabindex="0" role="region" aria-label="Table">${Renderer.prototype.table.call(this, token)}</div>`;
    },
  },
});

/** The language that a fence names: its first word. */
export function languageOf(info: string): string {
  return WORD.exec(info.trim())?.[0] ?? "";
}

function framed(text: string, language: string): string {
  const bar = `<div class="code-bar"><span class="language">${escaped(language)}</span></div>`;
  return `<div class="code">${bar}<pre tabindex="0"><code>${escaped(text)}</code></pre></div>`;
}

/** The blocks of a text. What is nested so deeply that nobody can read it is one paragraph as it is. */
export function lexed(text: string): Token[] {
  return unlessTooDeep<Token[]>(() => marked.lexer(text), () => [{ type: "paragraph", raw: text, text, tokens: [{ type: "text", raw: text, text, escaped: false }] }]);
}

/** The HTML of tokens, which is not cleaned yet: see `clean.ts`. */
export function rendered(tokens: Token[]): string {
  return unlessTooDeep(() => marked.parser(tokens).trim(), () => `<p>${escaped(tokens.map(({ raw }) => raw).join(""))}</p>`);
}

function unlessTooDeep<T>(act: () => T, instead: () => T): T {
  try {
    return act();
  } catch (error) {
    if (error instanceof RangeError) return instead();
    throw error;
  }
}
