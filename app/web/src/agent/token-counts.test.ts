import { describe, expect, test } from "vitest";

import { createCountClient } from "./count-client.ts";
import { TokenCounts, MAX_COUNTED_RUNS } from "./token-counts.ts";
import { random } from "@khala/client/testing/random.ts";
import { TokenCounter } from "./token-counter.ts";

/** A token is a character, so that a count says what was counted. */
const counts = (): TokenCounts => new TokenCounts(() => Promise.resolve(new TokenCounter((text) => text.length, true)));

describe("counting a growing answer", () => {
  test("counts on from where it was, and says if it doesn't know that place", async () => {
    const some = counts();
    expect(await some.count("a", 0, "12345", "m")).toEqual({ tokens: 5, exact: true });
    expect(await some.count("a", 5, "67", "m")).toEqual({ tokens: 7, exact: true });
    expect(await some.count("a", 5, "67", "m")).toBeNull();
    expect(await some.count("a", 7, "8", "other model")).toBeNull();
    expect(await some.count("b", 3, "x", "m")).toBeNull();
    expect(await some.count("a", 0, "1234", "other model")).toEqual({ tokens: 4, exact: true });
  });

  test("gives up the run that was asked for longest ago", async () => {
    const some = counts();
    for (let run = 0; run < MAX_COUNTED_RUNS; run++) await some.count(`${run}`, 0, "x", "m");
    await some.count("0", 1, "y", "m");
    await some.count("new", 0, "x", "m");
    expect(await some.count("0", 2, "z", "m")).toEqual({ tokens: 3, exact: true });
    expect(await some.count("1", 1, "y", "m")).toBeNull();
  });

  test("goes on after a tokenizer that could not be loaded", async () => {
    let fails = true;
    const some = new TokenCounts(() => (fails ? Promise.reject(new Error("offline")) : Promise.resolve(new TokenCounter((text) => text.length, true))));
    await expect(some.count("a", 0, "x", "m")).rejects.toThrow("offline");
    fails = false;
    expect(await some.count("a", 0, "xy", "m")).toEqual({ tokens: 2, exact: true });
  });

  test("sends each character once", async () => {
    const some = counts();
    let sent = 0;
    const count = createCountClient((asked) => ((sent += asked.text.length), some.count(asked.runId, asked.from, asked.text, asked.model)));
    const text = "x".repeat(500);
    for (let length = 1; length <= 500; length++) expect(await count("a", text.slice(0, length), "m")).toEqual({ tokens: length, exact: true });
    expect(sent).toBe(500);
  });

  test("is right though calls overlap, texts begin anew, models change and the worker loses what it knew", async () => {
    const chance = random(2);
    let some = counts();
    const count = createCountClient(({ runId, from, text, model }) => some.count(runId, from, text, model));
    const waiting: Promise<void>[] = [];
    const lengths = new Map<string, number>();
    for (let step = 0; step < 2_000; step++) {
      if (chance.next() < 0.02) some = counts();
      const run = `${chance.below(90)}`;
      const length = chance.next() < 0.05 ? chance.below(10) : (lengths.get(run) ?? 0) + chance.below(20);
      lengths.set(run, length);
      waiting.push(count(run, "x".repeat(length), chance.next() < 0.1 ? "m" : "n").then(({ tokens }) => expect(tokens).toBe(length)));
      if (chance.next() < 0.2) await waiting.at(-1);
    }
    await Promise.all(waiting);
  });
});
