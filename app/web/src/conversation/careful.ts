// A lexer of Markdown that ends soon whatever it is given: what would take too long to read is shown as it is.

import { Lexer } from "marked";
import type { Token } from "marked";

/** What may begin or end something within a paragraph: each is looked at with all that follows it. */
const MARKS = /[*_~`[\]<\\$!@]/g;
/** Spaces, or letters without one, in such numbers are looked at again from each of them. */
const RUN = / {400}|[^\s]{4000}/;
/** Marks × letters that may be looked at: some for each text, and more for longer ones. */
const EFFORT = 1_000_000;
const EFFORT_PER_LETTER = 100;

export class CarefulLexer extends Lexer {
  #effort = 0;

  override lex(text: string): ReturnType<Lexer["lex"]> {
    this.#effort = EFFORT + EFFORT_PER_LETTER * text.length;
    return super.lex(text);
  }

  override inlineTokens(text: string, tokens: Token[] = []): Token[] {
    this.#effort -= effortOf(text);
    if (this.#effort >= 0 && !RUN.test(text)) return super.inlineTokens(text, tokens);
    tokens.push({ type: "text", raw: text, text, escaped: false });
    return tokens;
  }
}

function effortOf(text: string): number {
  return (text.match(MARKS)?.length ?? 0) * text.length;
}
