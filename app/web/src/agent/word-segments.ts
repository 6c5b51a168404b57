// The words of a text, folded so that what reads the same compares the same.

/** Scripts that put no spaces between words: each character counts as a word, which finds what a dictionary would, and more. */
const UNSPACED = String.raw`[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}\p{sc=Lao}\p{sc=Khmer}\p{sc=Myanmar}]`;
const WORD = new RegExp(String.raw`${UNSPACED}\p{M}*|(?:(?!${UNSPACED})[\p{L}\p{N}\p{M}_])+`, "gu");
const ASCII = /^[ -~\t\r\n]*$/;
const SEGMENT = /[\p{L}\p{N}\p{M}_]+/gu;

export type Word = { word: string; start: number; end: number };

/** NFKC and without case: full case folding as far as JavaScript knows it, so `STRASSE` is `straße`, and `ς` is `σ`. */
export function foldCase(text: string): string {
  // Most words are ASCII, for which this is the same, and fast.
  if (ASCII.test(text)) return text.toLowerCase();
  return text.normalize("NFKC").toUpperCase().toLowerCase().replaceAll("ς", "σ").normalize("NFKC");
}

/** The words in their order, folded, and where each stands in the text as it is. */
export function wordsOf(text: string): Word[] {
  return Array.from(text.matchAll(WORD), ({ 0: found, index }) => ({ word: foldCase(found), start: index, end: index + found.length }));
}

/** What stands between spaces and punctuation, folded; a sentence in a script without spaces is one such run. */
export function segmentsOf(text: string): string[] {
  return foldCase(text).match(SEGMENT) ?? [];
}
