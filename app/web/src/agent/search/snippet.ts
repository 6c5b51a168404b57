// The excerpt of a text that shows why it matches.

import { wordsOf } from "../word-segments.ts";

/** `ranges` are [start, end) of the matching words in `snippet`, in UTF-16 units. */
export type Snippet = { snippet: string; ranges: [number, number][] };

export const MAX_SNIPPET_CHARACTERS = 160;
const CONTEXT_CHARACTERS = 40;

/** The excerpt around the first word that begins with one of `starts`, or the beginning of the text; in one line. */
export function snippetOf(text: string, starts: readonly string[]): Snippet {
  const found = wordsOf(text).filter(({ word }) => starts.some((start) => word.startsWith(start)));
  const from = cutBefore(text, found[0]?.start ?? 0);
  const to = cutAfter(text, from);
  const lead = from > 0 ? "… " : "";
  const shift = lead.length - from;
  return {
    // Each line end or tab becomes one space, so that positions stay the same.
    snippet: lead + text.slice(from, to).replace(/\s/gu, " ") + (to < text.length ? " …" : ""),
    ranges: found.filter(({ end }) => end <= to).map(({ start, end }) => [start + shift, end + shift]),
  };
}

/** A position a little before `at`, at the beginning of a word if there is one. */
function cutBefore(text: string, at: number): number {
  if (at <= CONTEXT_CHARACTERS) return 0;
  const space = text.slice(at - CONTEXT_CHARACTERS, at).search(/\s/u);
  return space < 0 ? at : at - CONTEXT_CHARACTERS + space + 1;
}

function cutAfter(text: string, from: number): number {
  const to = from + MAX_SNIPPET_CHARACTERS;
  if (to >= text.length) return text.length;
  const space = text.slice(from, to).search(/\s\S*$/u);
  if (space > MAX_SNIPPET_CHARACTERS / 2) return from + space;
  // In a script without spaces at any character, but not within a surrogate pair.
  return /[\ud800-\udbff]/.test(text.charAt(to - 1)) ? to - 1 : to;
}
