// Markdown of answers as HTML: GitHub's flavour and formulas; HTML in it is text, and images are links.

import { Marked, Renderer, Tokenizer } from "marked";
import type { Token } from "marked";

import { isComponent } from "../session/components.ts";
import { CarefulLexer } from "./careful.ts";
import { escaped } from "./escaping.ts";
import { MATH } from "./math.ts";

const SAFE = /^(?:https?:\/\/|mailto:)/i;
/** Tags without attributes that are taken as they are; in tables there is no other way to break a line. */
const HARMLESS = /^<(?:br ?\/?|\/?(?:sub|sup|kbd))>$/i;
/** That of a heading that is underlined. */
const LONGEST_HEADING = 1000;
const TOO_DEEP = /^(?:[ \t]{0,4}>){100}/m;
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

/** What is done where nothing else is said. */
const RENDERER = Renderer.prototype as Renderer;

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: MATH,
  // Marked would read on to the end, from each line again.
  tokenizer: {
    table: (text) => (/^.*\n.*[|:]/.test(text) ? false : undefined),
    lheading(text) {
      return Tokenizer.prototype.lheading.call(this, text.slice(0, LONGEST_HEADING));
    },
  },
  renderer: {
    html: ({ text, block }) => {
      if (HARMLESS.test(text.trim())) return text.trim();
      return block ? `<p>${escaped(text.trim())}</p>` : escaped(text);
    },
    // Text is never HTML, though marked takes it for that behind a tag such as <kbd>.
    text(token) {
      return RENDERER.text.call(this, "escaped" in token ? { ...token, escaped: false } : token);
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
    checkbox: ({ checked }) => `<span class="box${checked ? " checked" : ""}" role="img" aria-label="${checked ? "Done" : "Not done"}"></span> `,
    table(token) {
      return `<div class="table" tabindex="0" role="region" aria-label="Table">${RENDERER.table.call(this, token)}</div>`;
    },
  },
});

/** The language that a fence names: its first word, and "component" after it where that is what the code makes. */
export function languageOf(info: string): string {
  const language = WORD.exec(info.trim())?.[0] ?? "";
  return isComponent(info) ? `${language} component` : language;
}

function framed(text: string, language: string): string {
  const bar = `<div class="code-bar"><span class="language">${escaped(language)}</span></div>`;
  return `<div class="code">${bar}<pre tabindex="0"><code>${escaped(text)}</code></pre></div>`;
}

/** The blocks of a text. What is nested so deeply that nobody can read it is one paragraph as it is. */
export function lexed(text: string): Token[] {
  const plain = (): Token[] => [{ type: "paragraph", raw: text, text, tokens: [{ type: "text", raw: text, text, escaped: false }] }];
  if (TOO_DEEP.test(text)) return plain();
  return unlessTooDeep(() => new CarefulLexer(marked.defaults).lex(text), plain);
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
