// What changes between two texts, line by line.

export type Change = { kind: "same" | "gone" | "new"; line: string };

/** Cells of the table of the longest common lines; beyond that, what differs is shown as taken out and put in. */
const MOST_CELLS = 1_000_000;

/** The lines of both texts in order: those that are "gone" and those that are the "same" make `before`, "new" and "same" `after`. */
export function diff(before: string, after: string): Change[] {
  const [old, fresh] = [before.split("\n"), after.split("\n")];
  const head = common(old, fresh, (lines, index) => lines[index]);
  const [a, b] = [old.slice(head), fresh.slice(head)];
  const tail = common(a, b, (lines, index) => lines[lines.length - 1 - index]);
  const middle = between(a.slice(0, a.length - tail), b.slice(0, b.length - tail));
  return [...told("same", old.slice(0, head)), ...middle, ...told("same", a.slice(a.length - tail))];
}

/** Only what changes, with `around` lines of what stays; null stands for lines that are left out. */
export function excerpt(changes: readonly Change[], around = 2): (Change | null)[] {
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

function common(one: readonly string[], other: readonly string[], at: At): number {
  const most = Math.min(one.length, other.length);
  let count = 0;
  while (count < most && at(one, count) === at(other, count)) count++;
  return count;
}

function told(kind: Change["kind"], lines: readonly string[]): Change[] {
  return lines.map((line) => ({ kind, line }));
}

function between(old: readonly string[], fresh: readonly string[]): Change[] {
  if (old.length * fresh.length > MOST_CELLS) return [...told("gone", old), ...told("new", fresh)];
  const width = fresh.length + 1;
  const longest = lengths(old, fresh);
  const found: Change[] = [];
  let [i, j] = [0, 0];
  for (;;) {
    const [line, other] = [old[i], fresh[j]];
    if (line === undefined) return [...found, ...told("new", fresh.slice(j))];
    if (other === undefined) return [...found, ...told("gone", old.slice(i))];
    const isSame = line === other;
    const goes = !isSame && (longest[(i + 1) * width + j] ?? 0) >= (longest[i * width + j + 1] ?? 0);
    found.push(isSame ? { kind: "same", line } : goes ? { kind: "gone", line } : { kind: "new", line: other });
    if (isSame || goes) i++;
    if (isSame || !goes) j++;
  }
}

/** In row i and column j: how many lines `old` from i on and `fresh` from j on have in common at most. */
function lengths(old: readonly string[], fresh: readonly string[]): Uint32Array {
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
