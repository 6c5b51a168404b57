// Splits a text into words, case-folded so that equal words compare as equal.

/**
 * Scripts without spaces between words, and Hangul, in which particles follow a word without a space: those of `UNSPACED` in
 * `khala.domain.search_terms`. Each character counts as a word, which finds all that a dictionary would, and more.
 */
const SCRIPTS = ["Han", "Hiragana", "Katakana", "Bopomofo", "Yi", "Hangul", "Thai", "Lao", "Khmer", "Myanmar", "Tai_Le", "New_Tai_Lue", "Tai_Tham", "Balinese", "Javanese"];
const UNSPACED = `[${SCRIPTS.map((script) => String.raw`\p{sc=${script}}`).join("")}]`;
/** A syllable of Hangul that is stored as its letters, as in the file names of macOS. */
const HANGUL_LETTERS = String.raw`[\u1100-\u115f][\u1160-\u11a7][\u11a8-\u11ff]?`;
const WORD = new RegExp(String.raw`${HANGUL_LETTERS}|${UNSPACED}\p{M}*|(?:(?!${UNSPACED})[\p{L}\p{N}\p{M}_])+`, "gu");
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
