// Splits a text at the bounds of search matches.

export type MatchSegment = { text: string; isMatch: boolean };

/** The segments of a text in order. `ranges` are [start, end) of the matches; they may overlap, be unsorted, or exceed the text. */
export function matchSegments(text: string, ranges: readonly (readonly [number, number])[]): MatchSegment[] {
  const pieces: MatchSegment[] = [];
  let end = 0;
  const add = (to: number, isMatch: boolean): void => {
    if (to > end) pieces.push({ text: text.slice(end, to), isMatch });
    end = Math.max(end, to);
  };
  for (const [from, to] of ranges.toSorted(([a], [b]) => a - b)) {
    add(Math.min(from, text.length), false);
    add(Math.min(to, text.length), true);
  }
  add(text.length, false);
  return pieces;
}
