// Converts answers' Markdown to HTML: GitHub flavour with formulas. HTML in it stays text, and images become links.

import { Marked, Renderer, Tokenizer } from "marked";
import type { Token } from "marked";

import { isComponent } from "../session/components.ts";
import { alertOf, alertTitle } from "./alerts.ts";
import { BoundedLexer } from "./bounded-lexer.ts";
import { DETAILS } from "./details.ts";
import { escapeHtml } from "./escape-html.ts";
import { FOOTNOTES } from "./footnotes.ts";
import { MATH } from "./math.ts";
import { m } from "../i18n/messages.ts";

const SAFE = /^(?:https?:\/\/|mailto:)/i;
/** A cell of a table with so much text needs a width in which it can be read. */
const MIN_LONG_CELL_CHARACTERS = 48;
/** Tags without attributes that are allowed; `<br>` is the only way to break a line in a table. */
const HARMLESS = /^<(?:br ?\/?|\/?(?:sub|sup|kbd))>$/i;
/** Of a heading that is marked by underlining. */
const MAX_HEADING_CHARACTERS = 1000;
const TOO_DEEP = /^(?:[ \t]{0,4}>){100}/m;
const WORD = /^[\w+#.-]{1,40}/;

/** The URL if it may be a link (absolute http, https or mailto), else null. */
export function safeUrl(href: string): string | null {
  return SAFE.test(href) ? href : null;
}

function link(href: string, title: string | null | undefined, inner: string): string {
  const attribute = title ? ` title="${escapeHtml(title)}"` : "";
  return `<a href="${escapeHtml(href)}"${attribute} target="_blank" rel="noopener noreferrer nofollow">${inner}</a>`;
}

/** Within a link an image becomes its alt text, because links can't be nested. */
function unlinked(tokens: Token[]): Token[] {
  return tokens.map((token) => (token.type === "image" ? { type: "text", raw: token.raw, text: String(token.text) } : token));
}

/** The default renderer. */
const RENDERER = Renderer.prototype as Renderer;

const marked: Marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: [...MATH, ...FOOTNOTES, DETAILS],
  // Bounds marked's lookahead, which is quadratic here.
  tokenizer: {
    table: (text) => (/^.*\n.*[|:]/.test(text) ? false : undefined),
    lheading(text) {
      return Tokenizer.prototype.lheading.call(this, text.slice(0, MAX_HEADING_CHARACTERS));
    },
  },
  renderer: {
    html: ({ text, block }) => {
      if (HARMLESS.test(text.trim())) return text.trim();
      return block ? `<p>${escapeHtml(text.trim())}</p>` : escapeHtml(text);
    },
    // Always escape text: marked leaves it unescaped after a tag such as <kbd>.
    text(token) {
      return RENDERER.text.call(this, "escaped" in token ? { ...token, escaped: false } : token);
    },
    heading({ depth, tokens }) {
      const level = Math.min(6, depth + 1); // the page's title is the h1
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
    blockquote(token): string {
      const alert = alertOf(token.tokens);
      if (!alert) return RENDERER.blockquote.call(this, token);
      const first = this.parser.parse(new BoundedLexer(marked.defaults).lex(alert.first));
      return `<div class="alert ${alert.kind}" role="note"><p class="alert-title">${alertTitle(alert.kind)}</p>${first}${this.parser.parse(token.tokens.slice(1))}</div>\n`;
    },
    link({ href, title, tokens }) {
      const inner = this.parser.parseInline(unlinked(tokens));
      return safeUrl(href) ? link(href, title, inner) : inner;
    },
    image: ({ href, title, text }) => (safeUrl(href) ? link(href, title, escapeHtml(text || m.image_alt())) : escapeHtml(text)),
    code: ({ text, lang }) => framed(text, languageOf(lang ?? "")),
    checkbox: ({ checked }) => `<span class="box${checked ? " checked" : ""}" role="img" aria-label="${checked ? m.done_box() : m.not_done_box()}"></span> `,
    tablecell(token) {
      const cell = RENDERER.tablecell.call(this, token);
      return !token.header && token.text.length >= MIN_LONG_CELL_CHARACTERS ? cell.replace("<td", '<td class="long"') : cell;
    },
    table(token) {
      return `<div class="table" tabindex="0" role="group" aria-label="${escapeHtml(m.table_region())}">${RENDERER.table.call(this, token)}</div>`;
    },
  },
});

/** The language of a code fence: the first word of its info string, followed by "component" for a component. */
export function languageOf(info: string): string {
  const language = WORD.exec(info.trim())?.[0] ?? "";
  return isComponent(info) ? `${language} component` : language;
}

function framed(text: string, language: string): string {
  const bar = `<div class="code-bar"><span class="language">${escapeHtml(language)}</span></div>`;
  return `<div class="code">${bar}<pre tabindex="0"><code>${escapeHtml(text)}</code></pre></div>`;
}

/** The block tokens of a text. Text that is nested too deeply becomes one plain paragraph. */
export function tokenize(text: string): Token[] {
  const plain = (): Token[] => [{ type: "paragraph", raw: text, text, tokens: [{ type: "text", raw: text, text, escaped: false }] }];
  if (TOO_DEEP.test(text)) return plain();
  return unlessTooDeep(() => new BoundedLexer(marked.defaults).lex(text), plain);
}

/** The HTML of tokens, not sanitised yet: see `sanitize.ts`. */
export function renderTokens(tokens: Token[]): string {
  return unlessTooDeep(() => marked.parser(tokens).trim(), () => `<p>${escapeHtml(tokens.map(({ raw }) => raw).join(""))}</p>`);
}

function unlessTooDeep<T>(act: () => T, instead: () => T): T {
  try {
    return act();
  } catch (error) {
    if (error instanceof RangeError) return instead();
    throw error;
  }
}
