// Benchmark of indexing, loading and searching 10,000 messages: `npx vitest bench src/agent/search`.

import { IDBFactory } from "fake-indexeddb";
import { test } from "vitest";

import { openDatabase } from "../database.ts";
import { random } from "@khala/client/testing/random.ts";
import { builtEngines } from "../engines/built.ts";
import { MessageArchive } from "./message-archive.ts";
import { MessageIndex } from "./message-index.ts";

const MESSAGES = 10_000;
const WORDS = 60;

test(`a search among ${MESSAGES} messages`, { timeout: 120_000 }, async () => {
  const chance = random(1);
  const letters = Array.from("etaoinshrdlucmfwypvbgk");
  const vocabulary = Array.from({ length: 20_000 }, () => Array.from({ length: 2 + chance.below(9) }, () => chance.pick(letters)).join(""));
  // As in natural language, a few words make up most of the text.
  const word = (): string => vocabulary[Math.floor(vocabulary.length * chance.next() ** 4)] ?? "";
  const messages = Array.from({ length: MESSAGES }, (_, at) => ({ id: `m${at}`, at, text: Array.from({ length: WORDS }, word).join(" ") }));
  const archive = new MessageArchive(new MessageIndex(await builtEngines.simd()), await openDatabase(new IDBFactory()));

  const began = performance.now();
  await archive.add({ id: "t", title: "A thread", revision: 1 }, messages);
  console.log(`indexed: ${(performance.now() - began).toFixed(0)} ms`);
  for (const query of ["e", "e t", vocabulary[3] ?? "", `${vocabulary[50]} ${vocabulary[700]}`, `${vocabulary[19_000]}x`, "the quick brown fox jumps over"]) {
    const times = Array.from({ length: 15 }, () => {
      const start = performance.now();
      archive.search(query, 30);
      return performance.now() - start;
    }).sort((a, b) => a - b);
    console.log(`“${query}”: ${times[7]?.toFixed(1)} ms (median), ${times[14]?.toFixed(1)} ms (worst)`);
  }
});
