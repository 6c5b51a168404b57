import { beforeEach, describe, expect, test } from "vitest";

import { random, type Random } from "@khala/client/testing/random.ts";
import { builtEngines } from "./built.ts";
import { chooseEngine } from "./choose.ts";
import { DIMENSIONS, topIndices, type Engine } from "./engine.ts";
import { createPlainEngine } from "./plain.ts";
import { hasSimd } from "./simd.ts";
import { unit } from "../testing/vectors.ts";

/** Vectors that are near each other in bunches, as those of texts are, and some that are nothing. */
function vectorOf(chance: Random, bunches: Float32Array[]): Float32Array {
  if (chance.next() < 0.02) return new Float32Array(DIMENSIONS);
  const noise = unit(chance, DIMENSIONS);
  const bunch = chance.pick(bunches);
  const mixed = noise.map((value, index) => 0.6 * value + (bunch[index] ?? 0));
  const length = Math.hypot(...mixed);
  return mixed.map((value) => value / length);
}

describe.each(["simd", "ruvector", "plain"] as const)("the engine %s", (name) => {
  let engine: Engine;

  beforeEach(async () => {
    engine = await builtEngines[name]();
    expect(engine.name).toBe(name);
  });

  test.each([1, 2, 3, 4, 5, 6])("answers as the plain one, whatever was added, changed and removed (%i)", (seed) => {
    const chance = random(seed);
    const bunches = Array.from({ length: 5 }, () => unit(chance, DIMENSIONS));
    const model = createPlainEngine();
    const kept = new Map<string, Float32Array>();
    for (let step = 0; step < 900; step++) {
      const id = `v${chance.below(500)}`;
      if (chance.next() < 0.3) {
        expect(engine.remove(id)).toBe(kept.delete(id));
        model.remove(id);
      } else {
        const vector = vectorOf(chance, bunches);
        kept.set(id, vector);
        engine.add(id, vector);
        model.add(id, vector);
      }
      if (step % 90 === 0) agree(engine, model, kept, vectorOf(chance, bunches), 1 + chance.below(20));
    }
    expect(engine.size).toBe(kept.size);
    agree(engine, model, kept, vectorOf(chance, bunches), kept.size + 10);
  });

  test("keeps its own copy of a vector", () => {
    const vector = unit(random(7), DIMENSIONS);
    const asked = vector.slice();
    engine.add("a", vector);
    vector.fill(0);
    expect(engine.search(asked, 1)[0]?.score).toBeCloseTo(1, 4);
  });

  test("is empty at first, and after it was cleared, and can be filled again", () => {
    const vector = unit(random(8), DIMENSIONS);
    expect(engine.search(vector, 3)).toEqual([]);
    engine.add("a", vector);
    engine.clear();
    expect(engine.size).toBe(0);
    expect(engine.search(vector, 3)).toEqual([]);
    engine.add("b", vector);
    expect(engine.search(vector, 3).map(({ id }) => id)).toEqual(["b"]);
    expect(engine.search(vector, 0)).toEqual([]);
  });

  test("refuses what has other than 384 numbers", () => {
    expect(() => engine.add("a", new Float32Array(383))).toThrow(RangeError);
    expect(() => engine.search(new Float32Array(385), 1)).toThrow(RangeError);
    expect(engine.size).toBe(0);
  });
});

/** The same scores in the same order, and each the cosine of the vector under its id; equals may change places. */
function agree(engine: Engine, model: Engine, kept: Map<string, Float32Array>, query: Float32Array, k: number): void {
  const found = engine.search(query, k);
  const expected = model.search(query, k);
  expect(found).toHaveLength(Math.min(k, kept.size));
  expect(new Set(found.map(({ id }) => id)).size).toBe(found.length);
  found.forEach(({ id, score }, index) => {
    expect(Math.abs(score - (expected[index]?.score ?? NaN))).toBeLessThan(1e-4);
    expect(Math.abs(score - cosine(query, kept.get(id)))).toBeLessThan(1e-4);
  });
}

function cosine(a: Float32Array, b: Float32Array | undefined): number {
  return b === undefined ? NaN : a.reduce((sum, value, index) => sum + value * (b[index] ?? NaN), 0);
}

test("the highest are the first of a sorted list", () => {
  const chance = random(9);
  for (let round = 0; round < 200; round++) {
    const scores = Float32Array.from({ length: chance.below(40) }, () => chance.below(10));
    const count = chance.below(scores.length + 1);
    const k = chance.below(12);
    const sorted = [...scores.keys()].slice(0, count).sort((a, b) => (scores[b] ?? 0) - (scores[a] ?? 0) || a - b);
    expect(topIndices(scores, count, k)).toEqual(sorted.slice(0, k));
  }
});

describe("the choice", () => {
  const fails = (): Promise<Engine> => Promise.reject(new Error("no memory"));

  test("is SIMD where there is SIMD", async () => {
    expect(hasSimd()).toBe(true);
    expect((await chooseEngine(builtEngines)).engine.name).toBe("simd");
  });

  test("is ruvector without SIMD", async () => {
    expect(await chooseEngine({ ...builtEngines, simd: null })).toMatchObject({ engine: { name: "ruvector" }, failures: [] });
  });

  test("is the plain one where nothing else starts, and says why", async () => {
    expect(await chooseEngine({ simd: fails, ruvector: fails })).toMatchObject({
      engine: { name: "plain" },
      failures: ["simd: no memory", "ruvector: no memory"],
    });
  });
});
