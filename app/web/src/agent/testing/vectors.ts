// Vectors for tests and benchmarks.

import type { Random } from "@khala/client/testing/random.ts";

/** A random vector of length 1. */
export function unit(chance: Random, dimensions: number): Float32Array {
  const vector = Float32Array.from({ length: dimensions }, () => chance.next() - 0.5);
  const length = Math.hypot(...vector);
  return vector.map((value) => value / length);
}
