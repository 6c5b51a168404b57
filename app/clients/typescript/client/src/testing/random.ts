// A seeded random number generator, so that each test run is the same.

export interface Random {
  /** A number in [0, 1). */
  next: () => number;
  /** An integer in [0, limit). */
  below: (limit: number) => number;
  pick: <T>(items: readonly T[]) => T;
  /** True with this probability. */
  chance: (probability: number) => boolean;
}

/** The sequence of this seed (mulberry32). */
export function random(seed: number): Random {
  let state = seed;
  const next = (): number => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
  const below = (limit: number): number => Math.floor(next() * limit);
  const pick = <T>(items: readonly T[]): T => {
    const [picked] = items.slice(below(items.length));
    if (picked === undefined) throw new Error("There is nothing to pick from.");
    return picked;
  };
  return { next, below, pick, chance: (probability) => next() < probability };
}
