// An answer's Markdown in pieces, while it grows: what is settled is read once, and only its end is read again.
//
// Reading the end costs credit, and credit grows with the text, so all reading together is linear in its length however
// it comes. While there is too little credit, what came is shown as it is. At the end everything is read once more, as a whole.

import type { Token, Tokens } from "marked";

import { languageOf, lexed, rendered } from "./markdown.ts";
import { holding, mended } from "./mending.ts";

/** Some blocks of Markdown. `html` is not cleaned yet; `rest` is text at its end that is shown as it is for now. */
export type Prose = { readonly kind: "prose"; readonly html: string; readonly rest: string; readonly settled: boolean };
export type Code = { readonly kind: "code"; readonly language: string; readonly text: string; readonly settled: boolean };
export type Piece = Prose | Code;

const CREDIT_PER_LETTER = 1.5;
const MOST_CREDIT = 20_000;
/** A last block that is shorter may still turn out to belong to the one before. */
const TELLING = 12;
/** A list that is longer is cut into several while it grows. */
const LONG_LIST = 1500;
const OPENING = /^(?:[ \t]*\n)*( {0,3})(`{3,}(?=[^`\n]*(?:\n|$))|~{3,})([^\n]*)(\n|$)/;
const NEXT_FENCE = /\n(?:`{3,}[^`\n]*|~{3,}[^\n]*)(?:\n|$)/;

type Fence = { begin: number; mark: string; indent: number; language: string };

export class Reader {
  #text = "";
  #settled: Piece[] = [];
  #end: Piece[] = [];
  #from = 0;
  #fence: Fence | null = null;
  /** Up to where the open fence was searched for its end. */
  #seen = 0;
  /** Up to where the text is in what is shown of its end, other than as its rest. */
  #shown = 0;
  #credit = MOST_CREDIT;
  #whole: { text: string; pieces: readonly Piece[] } | null = null;
  /** How many letters were given to the lexer so far. */
  lexed = 0;

  /** The pieces of the text as far as it has come; `done` when nothing follows. Those that are the same are the same objects. */
  read(given: string, done: boolean): readonly Piece[] {
    const text = given.includes("\r") ? given.replace(/\r\n?/g, "\n") : given;
    if (done) return this.#exactly(text);
    if (!text.startsWith(this.#text)) this.#restart();
    this.#credit = Math.min(MOST_CREDIT, this.#credit + CREDIT_PER_LETTER * (text.length - this.#text.length));
    this.#text = text;
    while (this.#advance());
    return [...this.#settled, ...this.#end];
  }

  #restart(): void {
    this.#text = "";
    this.#settled = [];
    this.#end = [];
    this.#from = 0;
    this.#fence = null;
  }

  #exactly(text: string): readonly Piece[] {
    if (this.#whole?.text === text) return this.#whole.pieces;
    this.lexed += text.length;
    this.#whole = { text, pieces: blocks(lexed(text)) };
    return this.#whole.pieces;
  }

  /** Settle what can be settled at the beginning of what is not; whether to look again. */
  #advance(): boolean {
    if (this.#fence) return this.#readCode(this.#fence);
    const end = this.#text.slice(this.#from);
    const opening = OPENING.exec(end);
    if (opening) return this.#open(opening);
    const next = NEXT_FENCE.exec(end);
    return next?.[0].endsWith("\n") ? this.#readUpTo(next.index + 1) : this.#readEnd(next ? end.slice(0, next.index + 1) : end);
  }

  #open([all, indent = "", mark = "", info = "", newline]: RegExpExecArray): boolean {
    this.#end = [{ kind: "code", language: languageOf(info), text: "", settled: false }];
    if (!newline) return false;
    this.#fence = { begin: this.#from + all.length, mark, indent: indent.length, language: languageOf(info) };
    this.#seen = this.#fence.begin;
    return true;
  }

  /** Code needs no lexer: it goes on until its fence is closed. */
  #readCode({ begin, mark, indent, language }: Fence): boolean {
    const closing = new RegExp(`(?:^|\\n) {0,3}${mark[0] ?? ""}{${mark.length},}[ \\t]*(?:\\n|$)`, "g");
    closing.lastIndex = Math.max(0, this.#seen - begin);
    const code = this.#text.slice(begin);
    const close = closing.exec(code);
    if (close?.[0].endsWith("\n")) {
      this.#settle({ kind: "code", language, text: dedented(code.slice(0, close.index), indent), settled: true }, begin + close.index + close[0].length);
      this.#fence = null;
      return true;
    }
    this.#seen = Math.max(begin, begin + code.lastIndexOf("\n"));
    const shown = close ? code.slice(0, close.index) : withoutHalf(code);
    this.#end = [{ kind: "code", language, text: dedented(shown, indent), settled: false }];
    return false;
  }

  #settle(piece: Piece, from: number): void {
    this.#settled.push(piece);
    this.#end = [];
    this.#from = from;
  }

  /** A fence ends whatever stands before it. */
  #readUpTo(length: number): boolean {
    const prose = this.#text.slice(this.#from, this.#from + length);
    this.lexed += prose.length;
    this.#credit -= prose.length;
    this.#settled.push(...blocks(lexed(prose)));
    this.#end = [];
    this.#from += length;
    return true;
  }

  #readEnd(end: string): boolean {
    const ready = holding(end).trimEnd();
    if (ready.length > this.#credit) {
      this.#extend(end);
      return false;
    }
    this.lexed += ready.length;
    this.#credit -= ready.length;
    const tokens = split(lexed(mended(ready)));
    const kept = unsettled(tokens);
    const settled = tokens.slice(0, tokens.length - kept);
    this.#settled.push(...blocks(settled));
    this.#from += lengthOf(settled);
    const last = tokens.slice(tokens.length - kept);
    this.#end = last.length > 0 ? [proseOf(last)] : [];
    this.#shown = this.#from + Math.max(0, ready.length - lengthOf(settled));
    return false;
  }

  #extend(end: string): void {
    const last = this.#end.at(-1);
    const rest = end.slice(Math.max(0, this.#shown - this.#from));
    const prose: Prose = last?.kind === "prose" ? { ...last, rest } : { kind: "prose", html: "", rest, settled: false };
    this.#end = [...this.#end.slice(0, -1), prose];
  }
}

/** Code without a last line that may be half of its closing fence. */
function withoutHalf(code: string): string {
  const line = Math.max(0, code.lastIndexOf("\n"));
  return /^\n? {0,3}(?:`*|~*)$/.test(code.slice(line)) ? code.slice(0, line) : code;
}

function lengthOf(tokens: readonly Token[]): number {
  return tokens.reduce((sum, { raw }) => sum + raw.length, 0);
}

function dedented(code: string, indent: number): string {
  return indent === 0 ? code : code.replace(new RegExp(`^ {1,${indent}}`, "gm"), "");
}

/** How many tokens at the end may still become something else. */
function unsettled(tokens: readonly Token[]): number {
  const last = tokens.findLastIndex(({ type }) => type !== "space");
  if (last < 0) return 0;
  const isTelling = (tokens[last]?.raw.trim().length ?? 0) >= TELLING;
  const before = isTelling ? last : tokens.findLastIndex(({ type }, at) => at < last && type !== "space");
  return tokens.length - Math.max(0, before < 0 ? last : before);
}

/** A long list as two, the last item by itself. */
function split(tokens: readonly Token[]): Token[] {
  const at = tokens.findLastIndex(({ type }) => type !== "space");
  const list = tokens[at];
  if (list?.type !== "list" || list.raw.length < LONG_LIST) return [...tokens];
  const items = (list as Tokens.List).items;
  const last = items.at(-1);
  if (!last || items.length < 2) return [...tokens];
  const raw = list.raw.slice(0, list.raw.length - last.raw.length);
  const start = Number(list.start) || 0;
  const tail = { ...list, raw: last.raw, items: [last], start: start ? start + items.length - 1 : "" };
  return [...tokens.slice(0, at), { ...list, raw, items: items.slice(0, -1) }, tail, ...tokens.slice(at + 1)];
}

function proseOf(tokens: readonly Token[], settled = false): Prose {
  return { kind: "prose", html: rendered([...tokens]), rest: "", settled };
}

/** Settled pieces, one for each block. */
function blocks(tokens: readonly Token[]): Piece[] {
  return tokens.flatMap((token): Piece[] => {
    if (token.type === "space" || token.type === "def") return [];
    if (token.type !== "code") return [proseOf([token], true)];
    const { text, lang } = token as Tokens.Code;
    return [{ kind: "code", language: languageOf(lang ?? ""), text, settled: true }];
  });
}
