// A Markdown lexer with bounded run time: text that would take too long to parse stays plain.

import { Lexer } from "marked";
import type { Token } from "marked";

/** Characters that may start or end inline markup; marked scans the rest of the paragraph from each. */
const MARKS = /[*_~`[\]<\\$!@]/g;
/** Runs of spaces or of other characters that marked scans again from each position. */
const LONG_RUN = / {400}|[^\s]{4000}/;
/** The budget in marks × characters: a constant for each text, plus a part that grows with its length. */
const MAX_EFFORT = 1_000_000;
const EFFORT_PER_CHARACTER = 100;

export class BoundedLexer extends Lexer {
  #effort = 0;

  override lex(text: string): ReturnType<Lexer["lex"]> {
    this.#effort = MAX_EFFORT + EFFORT_PER_CHARACTER * text.length;
    return super.lex(text);
  }

  override inlineTokens(text: string, tokens: Token[] = []): Token[] {
    this.#effort -= effortOf(text);
    if (this.#effort >= 0 && !LONG_RUN.test(text)) return super.inlineTokens(text, tokens);
    tokens.push({ type: "text", raw: text, text, escaped: false });
    return tokens;
  }
}

function effortOf(text: string): number {
  return (text.match(MARKS)?.length ?? 0) * text.length;
}
