// Chance for tests and benches that falls the same way each time.

export type Dice = { number(): number; below(limit: number): number; pick<T>(from: readonly T[]): T };

/** Mulberry32: small, and even enough to make up examples. */
export function dice(seed: number): Dice {
  let state = seed >>> 0;
  const number = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (limit: number): number => Math.floor(number() * limit);
  const pick = <T>(from: readonly T[]): T => {
    const [chosen] = from.slice(below(from.length));
    if (chosen === undefined) throw new RangeError("There is nothing to pick from.");
    return chosen;
  };
  return { number, below, pick };
}

/** A random vector of length 1. */
export function unit(chance: Dice, dimensions: number): Float32Array {
  const vector = Float32Array.from({ length: dimensions }, () => chance.number() - 0.5);
  const length = Math.hypot(...vector);
  return vector.map((value) => value / length);
}
