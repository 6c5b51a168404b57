import { IDBFactory } from "fake-indexeddb";
import { beforeEach, describe, expect, test } from "vitest";

import { openDatabase, readAll, write } from "./database.ts";
import { embed, pack } from "./embed.ts";
import { createPlainEngine } from "./engines/plain.ts";
import { estimate, median } from "./estimate.ts";
import { MAX_STORED_RUNS, RunHistory, type SimilarRun, type RecordedRun } from "./run-history.ts";

const run = (id: string, changes: Partial<RecordedRun> = {}): RecordedRun => ({
  id, agent: "tester", model: "openai:gpt-5", tools: ["read_file"], steps: 4, ms: 20_000, inputTokens: 4_000, outputTokens: 500, costUsd: "0.01", at: 1, ...changes,
});
const neighbour = (id: string, changes: Partial<SimilarRun> = {}): SimilarRun => ({ ...run(id), likeness: 0.9, ...changes });

describe("patterns", () => {
  let database: IDBDatabase;

  beforeEach(async () => {
    database = await openDatabase(new IDBFactory());
  });

  test("are recalled by what was asked, most alike first", async () => {
    const patterns = new RunHistory(createPlainEngine(), database);
    await patterns.remember("write unit tests for the parser", run("a"));
    await patterns.remember("translate the readme into German", run("b"));
    await patterns.remember("write unit tests for the lexer module", run("c"));
    await patterns.remember("write unit tests for parser errors", run("d"));
    const recalled = await patterns.recall("write unit tests for the parser", 3);
    expect(recalled.source).toBe("index");
    expect(recalled.failures).toEqual([]);
    expect(recalled.runs.map(({ id }) => id)).toEqual(["a", "d", "c"]);
    expect(recalled.runs[0]).toMatchObject({ ...run("a"), likeness: expect.closeTo(1, 2) as number });
  });

  test("outlive the worker, without the texts", async () => {
    await new RunHistory(createPlainEngine(), database).remember("my secret plan", run("a"));
    const later = new RunHistory(createPlainEngine(), database);
    await later.load();
    expect((await later.recall("the secret plan of mine", 1)).runs.map(({ id }) => id)).toEqual(["a"]);
    expect(JSON.stringify(await readAll(database, "runs"))).not.toContain("secret");
  });

  test("of which there are too many lose the oldest, in memory and in the store", { timeout: 60_000 }, async () => {
    const patterns = new RunHistory(createPlainEngine(), database);
    for (let index = 0; index < MAX_STORED_RUNS + 3; index++) await patterns.remember(`task number ${index}`, run(`r${index}`, { at: index === 5 ? 0 : index + 1 }));
    expect(patterns.size).toBe(MAX_STORED_RUNS);
    const kept = new Set(((await readAll(database, "runs")) as RecordedRun[]).map(({ id }) => id));
    expect(kept.size).toBe(MAX_STORED_RUNS);
    expect(["r0", "r1", "r2", "r5"].map((id) => kept.has(id))).toEqual([false, false, true, false]);
  });

  test("of several tabs are together no more than those of one", { timeout: 60_000 }, async () => {
    await write(database, ["runs"], (store) => {
      for (let index = 0; index < MAX_STORED_RUNS + 50; index++) store("runs").put({ ...run(`r${index}`, { at: index }), vector: pack(embed(`task ${index}`)) });
    });
    const patterns = new RunHistory(createPlainEngine(), database);
    await patterns.load();
    expect(patterns.size).toBe(MAX_STORED_RUNS);
    const kept = (await readAll(database, "runs")) as RecordedRun[];
    expect(Math.min(...kept.map(({ at }) => at))).toBe(50);
  });

  test("that are cleared are gone for good", async () => {
    const patterns = new RunHistory(createPlainEngine(), database);
    await patterns.remember("anything", run("a"));
    await patterns.clear();
    await patterns.load();
    expect(patterns.size).toBe(0);
  });

  test("are asked of the server after the index, and of the cache after the server", async () => {
    const asked: string[] = [];
    const other = new RunHistory(createPlainEngine(), database);
    for (const id of ["a", "b", "c"]) await other.remember("clean the data", run(id));
    const silent = new RunHistory(createPlainEngine(), database, (text) => (asked.push(text), Promise.resolve([])));
    expect(await silent.recall("clean the data", 5)).toMatchObject({ source: "cache", runs: [{}, {}, {}] });
    const knows = new RunHistory(createPlainEngine(), database, () => Promise.resolve(["x", "y", "z"].map((id) => neighbour(id))));
    expect((await knows.recall("clean the data", 5)).source).toBe("server");
    await other.recall("clean the data", 5);
    expect(asked).toEqual(["clean the data"]);
  });

  test("are still found if the server fails, which is told", async () => {
    const other = new RunHistory(createPlainEngine(), database);
    for (const id of ["a", "b", "c"]) await other.remember("clean the data", run(id));
    const patterns = new RunHistory(createPlainEngine(), database, () => Promise.reject(new Error("offline")));
    expect(await patterns.recall("clean the data", 5)).toMatchObject({ source: "cache", failures: ["server: offline"] });
  });

  test("work without a store, for as long as the worker lives", async () => {
    const patterns = new RunHistory(createPlainEngine(), null);
    await patterns.remember("anything at all", run("a"));
    expect((await patterns.recall("anything at all", 1)).runs).toHaveLength(1);
    expect(await patterns.recall("wholly unrelated", 1)).toEqual({ source: null, runs: [], failures: [] });
  });
});

describe("an estimate", () => {
  const price = { inputUsdPerMillion: "1", outputUsdPerMillion: "10" };

  test("is the median of like runs, at the price of the model that is asked now", () => {
    const runs = [neighbour("a", { steps: 2, ms: 1_000 }), neighbour("b", { steps: 5, ms: 31_260, inputTokens: 6_000 }), neighbour("c", { steps: 50, ms: 999_000, outputTokens: 900 })];
    expect(estimate("x", runs, price)).toEqual({ steps: 5, seconds: 31.3, tokens: 4_500, costUsd: "0.009", basis: "history", runs: 3 });
    expect(estimate("x", runs, null)).not.toHaveProperty("costUsd");
  });

  test("is rough, and says so, where fewer than three runs are alike", () => {
    const guess = estimate("Fix it", [neighbour("a"), neighbour("b")], price);
    expect(guess).toMatchObject({ steps: 2, seconds: 10, tokens: 3_904, basis: "rough", runs: 0 });
    expect(guess.costUsd).toBe("0.009304");
  });

  test("that is rough grows with what is listed, to a bound", () => {
    const listed = (count: number): number => estimate(Array.from({ length: count }, (_, index) => `${index + 1}. do this`).join("\n"), [], null).steps;
    expect([listed(0), listed(1), listed(4), listed(500)]).toEqual([2, 3, 6, 20]);
  });

  test("rests on medians", () => {
    expect(median([3])).toBe(3);
    expect(median([9, 1])).toBe(5);
    expect(median([9, 1, 2])).toBe(2);
  });
});
