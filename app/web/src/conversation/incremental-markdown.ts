// Incremental Markdown parser of a growing answer: settled blocks are parsed once, and only the end is parsed again.
//
// Parsing the end costs credit, and credit grows with the text, so total parsing time is linear in the length of the text,
// however it arrives. Without enough credit, new text is shown unformatted. At the end the whole text is parsed once more.

import type { Token, Tokens } from "marked";

import { isInDetails } from "./details.ts";
import { languageOf, tokenize, renderTokens } from "./markdown.ts";
import { withoutPartialEnd, closeOpenMarks } from "./partial-markdown.ts";

/** Some blocks of Markdown. `html` is not sanitised yet; `rest` is text at the end that is shown unformatted for now. */
export type Prose = { readonly kind: "prose"; readonly html: string; readonly rest: string; readonly settled: boolean };
export type CodePiece = { readonly kind: "code"; readonly language: string; readonly text: string; readonly settled: boolean };
export type Piece = Prose | CodePiece;

const CREDIT_PER_CHARACTER = 1.5;
const MAX_CREDIT_CHARACTERS = 20_000;
/** A shorter last block may still become part of the block before it. */
const MIN_SETTLED_CHARACTERS = 12;
/** A longer list is split while it grows. */
const LONG_LIST_CHARACTERS = 1500;
const OPENING = /^(?:[ \t]*\n)*( {0,3})(`{3,}(?=[^`\n]*(?:\n|$))|~{3,})([^\n]*)(\n|$)/;
const NEXT_FENCE = /\n(?:`{3,}[^`\n]*|~{3,}[^\n]*)(?:\n|$)/;

type Fence = { begin: number; mark: string; indent: number; language: string };

export class IncrementalParser {
  #text = "";
  #settled: Piece[] = [];
  #end: Piece[] = [];
  #from = 0;
  #fence: Fence | null = null;
  /** The position up to which the closing fence was searched for. */
  #seen = 0;
  /** The position up to which the text is part of the parsed end, without `rest`. */
  #shown = 0;
  #credit = MAX_CREDIT_CHARACTERS;
  #whole: { text: string; pieces: readonly Piece[] } | null = null;
  /** Characters that were given to the lexer so far. */
  tokenizedCharacters = 0;

  /** The pieces of the text so far; `done` when the text is complete. Unchanged pieces are the same objects as before. */
  parse(given: string, done: boolean): readonly Piece[] {
    const text = given.includes("\r") ? given.replace(/\r\n?/g, "\n") : given;
    if (done) return this.#exactly(text);
    if (!text.startsWith(this.#text)) this.#restart();
    this.#credit = Math.min(MAX_CREDIT_CHARACTERS, this.#credit + CREDIT_PER_CHARACTER * (text.length - this.#text.length));
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
    this.tokenizedCharacters += text.length;
    this.#whole = { text, pieces: blocks(tokenize(text)) };
    return this.#whole.pieces;
  }

  /** Settles the next part if possible; returns whether to try again. */
  #advance(): boolean {
    if (this.#fence) return this.#readCode(this.#fence);
    const end = this.#text.slice(this.#from);
    const opening = OPENING.exec(end);
    if (opening) return this.#open(opening);
    const fence = NEXT_FENCE.exec(end);
    const next = fence && isInDetails(end.slice(0, fence.index)) ? null : fence;
    return next?.[0].endsWith("\n") ? this.#readUpTo(next.index + 1) : this.#readEnd(next ? end.slice(0, next.index + 1) : end);
  }

  #open([all, indent = "", mark = "", info = "", newline]: RegExpExecArray): boolean {
    this.#end = [{ kind: "code", language: languageOf(info), text: "", settled: false }];
    if (!newline) return false;
    this.#fence = { begin: this.#from + all.length, mark, indent: indent.length, language: languageOf(info) };
    this.#seen = this.#fence.begin;
    return true;
  }

  /** Code needs no lexer: it ends at its closing fence. */
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

  /** A fence ends the block before it, so parse up to it. */
  #readUpTo(length: number): boolean {
    const prose = this.#text.slice(this.#from, this.#from + length);
    this.tokenizedCharacters += prose.length;
    this.#credit -= prose.length;
    this.#settled.push(...blocks(tokenize(prose)));
    this.#end = [];
    this.#from += length;
    return true;
  }

  #readEnd(end: string): boolean {
    const ready = withoutPartialEnd(end).trimEnd();
    if (ready.length > this.#credit) {
      this.#extend(end);
      return false;
    }
    this.tokenizedCharacters += ready.length;
    this.#credit -= ready.length;
    const tokens = splitLongList(tokenize(closeOpenMarks(ready)));
    const kept = unsettledCount(tokens);
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

/** Code without a last line that may be an incomplete closing fence. */
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

/** The number of tokens at the end that may still change. */
function unsettledCount(tokens: readonly Token[]): number {
  const last = tokens.findLastIndex(({ type }) => type !== "space");
  if (last < 0) return 0;
  const isTelling = (tokens[last]?.raw.trim().length ?? 0) >= MIN_SETTLED_CHARACTERS;
  const before = isTelling ? last : tokens.findLastIndex(({ type }, at) => at < last && type !== "space");
  return tokens.length - Math.max(0, before < 0 ? last : before);
}

/** Splits the last item off a long list. */
function splitLongList(tokens: readonly Token[]): Token[] {
  const at = tokens.findLastIndex(({ type }) => type !== "space");
  const list = tokens[at];
  if (list?.type !== "list" || list.raw.length < LONG_LIST_CHARACTERS) return [...tokens];
  const items = (list as Tokens.List).items;
  const last = items.at(-1);
  if (!last || items.length < 2) return [...tokens];
  const raw = list.raw.slice(0, list.raw.length - last.raw.length);
  const start = Number(list.start) || 0;
  const tail = { ...list, raw: last.raw, items: [last], start: start ? start + items.length - 1 : "" };
  return [...tokens.slice(0, at), { ...list, raw, items: items.slice(0, -1) }, tail, ...tokens.slice(at + 1)];
}

function proseOf(tokens: readonly Token[], settled = false): Prose {
  return { kind: "prose", html: renderTokens([...tokens]), rest: "", settled };
}

/** One settled piece for each block. */
function blocks(tokens: readonly Token[]): Piece[] {
  return tokens.flatMap((token): Piece[] => {
    if (token.type === "space" || token.type === "def") return [];
    if (token.type !== "code") return [proseOf([token], true)];
    const { text, lang } = token as Tokens.Code;
    return [{ kind: "code", language: languageOf(lang ?? ""), text, settled: true }];
  });
}
