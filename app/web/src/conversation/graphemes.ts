// Positions in a text at which it can be cut without splitting what a person sees as one character.

const segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" });
/** A cut is searched from a safe position at most this far before it, if there is one. */
const MAX_LOOKBACK_UNITS = 256;
/** How much of the text after a cut is looked at; a longer character is only shown as a whole. */
const LOOKAHEAD_UNITS = 64;

const isPlain = (code: number): boolean => code >= 0x20 && code < 0x7f;

/** The last position in `from`..`to` at which `text` can be cut. `from` is such a position, in UTF-16 units. */
export function cutBefore(text: string, from: number, to: number): number {
  if (to >= text.length) return text.length;
  if (to <= from || (isPlain(text.charCodeAt(to - 1)) && isPlain(text.charCodeAt(to)))) return Math.max(from, to);
  const begin = safeStart(text, from, to);
  let cut = begin;
  for (const { index, segment } of segmenter.segment(text.slice(begin, to + LOOKAHEAD_UNITS))) {
    if (begin + index + segment.length > to) break;
    cut = begin + index + segment.length;
  }
  return cut;
}

/** The length of the last character, which what follows may still change. */
export function lastCharacterLength(text: string): number {
  const begin = safeStart(text, 0, text.length);
  let length = 0;
  for (const { segment } of segmenter.segment(text.slice(begin))) length = segment.length;
  return length;
}

/** A position near the end between two characters that never join; `from` if there is none. */
function safeStart(text: string, from: number, to: number): number {
  const least = Math.max(from, to - MAX_LOOKBACK_UNITS);
  for (let at = to - 1; at > least; at--) if (isPlain(text.charCodeAt(at - 1)) && isPlain(text.charCodeAt(at))) return at;
  return from;
}
