// The rows in which the differences between two texts are shown: changed lines with their numbers, some lines around them, and gaps.

import { diffLines, excerpt } from "./line-diff.ts";
import type { LineChange } from "./line-diff.ts";

/** `before` and `after`: the numbers of the line in both texts. `marked`: where it differs from the line that it replaces or that replaces it. */
export type DiffLine = LineChange & { before: number | null; after: number | null; marked: readonly [number, number] | null };
/** Lines that are the same in both texts and not shown. */
export type DiffGap = { kind: "gap"; count: number };

/** Longer lines have no marked part. */
const MAX_MARKED_CHARACTERS = 1_000;
/** All that is not ASCII is in words, so that no character is cut. */
const IN_WORD = /[\w\u0080-\uffff]/;

export function diffRows(before: string, after: string): (DiffLine | DiffGap)[] {
  const lines = numbered(diffLines(before, after));
  markPairs(lines);
  const rows: (DiffLine | DiffGap)[] = [];
  let shown = 0;
  for (const line of excerpt(lines)) {
    if (line === null) continue;
    const at = lines.indexOf(line, shown);
    if (at > shown) rows.push({ kind: "gap", count: at - shown });
    rows.push(line);
    shown = at + 1;
  }
  return shown < lines.length ? [...rows, { kind: "gap", count: lines.length - shown }] : rows;
}

function numbered(changes: readonly LineChange[]): DiffLine[] {
  let [before, after] = [0, 0];
  return changes.map((change) => {
    if (change.kind !== "new") before += 1;
    if (change.kind !== "gone") after += 1;
    return { ...change, before: change.kind === "new" ? null : before, after: change.kind === "gone" ? null : after, marked: null };
  });
}

/** Mark what changed in lines of which as many were removed as were added in their place. */
function markPairs(lines: DiffLine[]): void {
  for (let at = 0; at < lines.length; ) {
    const gone = countOf(lines, at, "gone");
    const fresh = countOf(lines, at + gone, "new");
    if (gone === fresh) for (let index = at; index < at + gone; index++) markPair(lines[index], lines[index + gone]);
    at += Math.max(1, gone + fresh);
  }
}

function countOf(lines: readonly DiffLine[], from: number, kind: LineChange["kind"]): number {
  let at = from;
  while (lines[at]?.kind === kind) at += 1;
  return at - from;
}

function markPair(one: DiffLine | undefined, other: DiffLine | undefined): void {
  if (!one || !other || Math.max(one.line.length, other.line.length) > MAX_MARKED_CHARACTERS) return;
  const [a, b] = [one.line, other.line];
  const most = Math.min(a.length, b.length);
  let start = 0;
  while (start < most && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < most - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  // Whole words: where one text goes on with a word, so does the other.
  while (start > 0 && IN_WORD.test(a[start - 1] ?? "") && (IN_WORD.test(a[start] ?? "") || IN_WORD.test(b[start] ?? ""))) start -= 1;
  while (end > 0 && IN_WORD.test(a[a.length - end] ?? "") && (IN_WORD.test(a[a.length - end - 1] ?? "") || IN_WORD.test(b[b.length - end - 1] ?? ""))) end -= 1;
  if ((a.slice(0, start) + a.slice(a.length - end)).trim() === "") return; // nothing is the same
  one.marked = [start, a.length - end];
  other.marked = [start, b.length - end];
}
