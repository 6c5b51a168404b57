// Random numbers that are the same in each run.

export interface Random {
  /** From 0 to 1. */
  next: () => number;
  /** A whole number from 0 to below `most`. */
  below: (most: number) => number;
  pick: <T>(items: readonly T[]) => T;
  chance: (share: number) => boolean;
}

/** The sequence that belongs to this seed (mulberry32). */
export function random(seed: number): Random {
  let state = seed;
  const next = (): number => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
  const below = (most: number): number => Math.floor(next() * most);
  const pick = <T>(items: readonly T[]): T => {
    const [picked] = items.slice(below(items.length));
    if (picked === undefined) throw new Error("There is nothing to pick from.");
    return picked;
  };
  return { next, below, pick, chance: (share) => next() < share };
}
