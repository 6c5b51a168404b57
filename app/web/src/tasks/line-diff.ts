// The differences between two texts, line by line.

export type LineChange = { kind: "same" | "gone" | "new"; line: string };

/** The maximum size of the table of common lines. Larger differences are shown as removed and added as a whole. */
const MAX_TABLE_CELLS = 1_000_000;

/** All lines in order: "gone" and "same" lines make up `before`, "new" and "same" lines `after`. */
export function diffLines(before: string, after: string): LineChange[] {
  const [old, fresh] = [before.split("\n"), after.split("\n")];
  const head = commonLength(old, fresh, (lines, index) => lines[index]);
  const [a, b] = [old.slice(head), fresh.slice(head)];
  const tail = commonLength(a, b, (lines, index) => lines[lines.length - 1 - index]);
  const middle = diffMiddle(a.slice(0, a.length - tail), b.slice(0, b.length - tail));
  return [...toChanges("same", old.slice(0, head)), ...middle, ...toChanges("same", a.slice(a.length - tail))];
}

/** Only the changes, each with `around` lines of context; null stands for omitted lines. */
export function excerpt<Change extends LineChange>(changes: readonly Change[], around = 2): (Change | null)[] {
  const near = new Uint8Array(changes.length);
  changes.forEach(({ kind }, index) => {
    if (kind !== "same") near.fill(1, Math.max(0, index - around), index + around + 1);
  });
  const found: (Change | null)[] = [];
  changes.forEach((change, index) => {
    if (near[index]) found.push(change);
    else if (index === 0 || near[index - 1]) found.push(null);
  });
  return found;
}

type At = (lines: readonly string[], index: number) => string | undefined;

function commonLength(one: readonly string[], other: readonly string[], at: At): number {
  const most = Math.min(one.length, other.length);
  let count = 0;
  while (count < most && at(one, count) === at(other, count)) count++;
  return count;
}

function toChanges(kind: LineChange["kind"], lines: readonly string[]): LineChange[] {
  return lines.map((line) => ({ kind, line }));
}

function diffMiddle(old: readonly string[], fresh: readonly string[]): LineChange[] {
  if (old.length * fresh.length > MAX_TABLE_CELLS) return [...toChanges("gone", old), ...toChanges("new", fresh)];
  const width = fresh.length + 1;
  const longest = commonLengths(old, fresh);
  const found: LineChange[] = [];
  let [i, j] = [0, 0];
  for (;;) {
    const [line, other] = [old[i], fresh[j]];
    if (line === undefined) return [...found, ...toChanges("new", fresh.slice(j))];
    if (other === undefined) return [...found, ...toChanges("gone", old.slice(i))];
    const isSame = line === other;
    const goes = !isSame && (longest[(i + 1) * width + j] ?? 0) >= (longest[i * width + j + 1] ?? 0);
    found.push(isSame ? { kind: "same", line } : goes ? { kind: "gone", line } : { kind: "new", line: other });
    if (isSame || goes) i++;
    if (isSame || !goes) j++;
  }
}

/** In row i and column j: the maximum number of common lines of `old` from i on and `fresh` from j on. */
function commonLengths(old: readonly string[], fresh: readonly string[]): Uint32Array {
  const width = fresh.length + 1;
  const table = new Uint32Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = fresh.length - 1; j >= 0; j--) {
      const [below, right, both] = [table[(i + 1) * width + j] ?? 0, table[i * width + j + 1] ?? 0, table[(i + 1) * width + j + 1] ?? 0];
      table[i * width + j] = old[i] === fresh[j] ? both + 1 : Math.max(below, right);
    }
  }
  return table;
}
