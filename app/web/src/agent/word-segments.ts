// Splits a text into words, case-folded so that equal words compare as equal.

/** Scripts without spaces between words. Each character counts as a word, which finds all that a dictionary would, and more. */
const UNSPACED = String.raw`[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}\p{sc=Lao}\p{sc=Khmer}\p{sc=Myanmar}]`;
const WORD = new RegExp(String.raw`${UNSPACED}\p{M}*|(?:(?!${UNSPACED})[\p{L}\p{N}\p{M}_])+`, "gu");
const ASCII = /^[ -~\t\r\n]*$/;
const SEGMENT = /[\p{L}\p{N}\p{M}_]+/gu;

export type Word = { word: string; start: number; end: number };

/** NFKC and case folding as far as JavaScript supports it: `STRASSE` equals `straße`, and `ς` equals `σ`. */
export function foldCase(text: string): string {
  // Most words are ASCII, for which this is equivalent and fast.
  if (ASCII.test(text)) return text.toLowerCase();
  return text.normalize("NFKC").toUpperCase().toLowerCase().replaceAll("ς", "σ").normalize("NFKC");
}

/** The folded words in order, with their positions in the original text. */
export function wordsOf(text: string): Word[] {
  return Array.from(text.matchAll(WORD), ({ 0: found, index }) => ({ word: foldCase(found), start: index, end: index + found.length }));
}

/** The folded segments between spaces and punctuation. A sentence in a script without spaces is one segment. */
export function segmentsOf(text: string): string[] {
  return foldCase(text).match(SEGMENT) ?? [];
}
