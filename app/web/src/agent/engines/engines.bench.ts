// Benchmark of a search among 10,000 vectors: `npx vitest bench src/agent/engines`.

import { test } from "vitest";

import { random } from "@khala/client/testing/random.ts";
import { builtEngines } from "./built.ts";
import { DIMENSIONS } from "./engine.ts";
import { unit } from "../testing/vectors.ts";

const VECTORS = 10_000;

test.each(["simd", "ruvector", "plain"] as const)(`a search among ${VECTORS} vectors with %s`, async (name) => {
  const engine = await builtEngines[name]();
  const chance = random(1);
  const query = unit(chance, DIMENSIONS);
  for (let index = 0; index < VECTORS; index++) engine.add(`v${index}`, unit(chance, DIMENSIONS));
  const times = Array.from({ length: 60 }, () => {
    const began = performance.now();
    engine.search(query, 10);
    return performance.now() - began;
  }).sort((a, b) => a - b);
  console.log(`${name}: ${times[30]?.toFixed(3)} ms (median), ${times[0]?.toFixed(3)} ms (best)`);
});
