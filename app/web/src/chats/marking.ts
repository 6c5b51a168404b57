// A text cut where matches begin and end.

export type Piece = { text: string; isMatch: boolean };

/** The pieces of a text, in order; `ranges` are [start, end) of the matches, in any order, and may overlap or reach too far. */
export function marked(text: string, ranges: readonly (readonly [number, number])[]): Piece[] {
  const pieces: Piece[] = [];
  let end = 0;
  const add = (to: number, isMatch: boolean): void => {
    if (to > end) pieces.push({ text: text.slice(end, to), isMatch });
    end = Math.max(end, to);
  };
  for (const [from, to] of ranges.toSorted(([one], [other]) => one - other)) {
    add(Math.min(from, text.length), false);
    add(Math.min(to, text.length), true);
  }
  add(text.length, false);
  return pieces;
}
