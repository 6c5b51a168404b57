import { describe, expect, test } from "vitest";

import { random, type Random } from "@khala/client/testing/random.ts";
import { createCounter, encodingOf, load, MAX_STRETCH_CHARACTERS, TokenCounter } from "./token-counter.ts";

const PIECES = [
  ...Array.from("aBcÉßzΩя漢字かナ한👍🏽١٢3456789 \t\n\r/'\"{}()=<>_-.,;:!?。、“”…\u00a0\u200d\u0301\u0308\ufeff\u2028\ud83d\udc4d"),
  ...["  ", "   ", "\n\n", "\r\n", " \n ", "\t\t", "'s", "'LL", "'re", "can't", "don’t", "//", "/*", "==>", "```python\n", "    return ", "HTMLParser", "fooBar"],
  ...["ǅ", "ʰ", "e\u0301", "नमस्ते", "สวัสดี", "12345", " 42", "<|endoftext|>", "<|im_start|>", "https://a.b/c?d=e", "\n/", "\n'", " 'll", "日本語のテキスト。"],
];

/** Words, spaces, code and scripts of all kinds, one after the other without sense. */
function textOf(chance: Random, parts: number): string {
  const favourites = Array.from({ length: 6 }, () => chance.pick(PIECES));
  return Array.from({ length: parts }, () => chance.pick(chance.next() < 0.5 ? favourites : PIECES)).join("");
}

describe.each(["o200k_base", "cl100k_base"] as const)("with %s", (encoding) => {
  test("the count is that of the whole text at every step, wherever it is cut", { timeout: 60_000 }, async () => {
    const count = await load(encoding);
    for (let seed = 0; seed < 300; seed++) {
      const chance = random(seed);
      const text = textOf(chance, 60);
      const counter = new TokenCounter(count, true);
      for (let at = 0; at < text.length; ) {
        const next = Math.min(text.length, at + 1 + chance.below(chance.next() < 0.7 ? 3 : 25));
        const { tokens, exact } = counter.append(text.slice(at, next));
        at = next;
        expect([seed, at, tokens, exact]).toEqual([seed, at, count(text.slice(0, at)), true]);
      }
      expect(counter.characters).toBe(text.length);
    }
  });

  test("a text that comes at once has the count of one that comes bit by bit", async () => {
    const count = await load(encoding);
    const text = "fn main() {\n    println!(\"héllo, wörld\");\n}\n\n// 世界 and 'll\n".repeat(400);
    expect(text.length).toBeGreaterThan(4 * MAX_STRETCH_CHARACTERS);
    expect(new TokenCounter(count, true).append(text)).toEqual({ tokens: count(text), exact: true });
  });
});

test("only the end is encoded again", () => {
  let encoded = 0;
  const counter = new TokenCounter((text) => ((encoded += text.length), text.length), true);
  const text = "Some words, of which there are many more to come.\n".repeat(200);
  for (const character of text) counter.append(character);
  expect(encoded).toBeLessThan(12 * text.length);
});

test("a piece without end is cut, in time and not exactly", () => {
  let longest = 0;
  const counter = new TokenCounter((text) => ((longest = Math.max(longest, text.length)), text.length), true);
  expect(counter.append(`a ${"=".repeat(100_000)}`)).toEqual({ tokens: 100_002, exact: false });
  expect(counter.append(` b ${"漢".repeat(100_000)} c`)).toEqual({ tokens: 200_007, exact: false });
  expect(longest).toBeLessThanOrEqual(2 * MAX_STRETCH_CHARACTERS);
});

test("the model says which encoding it is, and whether that is known", async () => {
  expect(encodingOf("openai:gpt-5-mini")).toEqual({ encoding: "o200k_base", exact: true });
  expect(encodingOf("openai:gpt-4o-2024-08-06")).toEqual({ encoding: "o200k_base", exact: true });
  expect(encodingOf("openai:gpt-4.1")).toEqual({ encoding: "o200k_base", exact: true });
  expect(encodingOf("openai:o3-mini")).toEqual({ encoding: "o200k_base", exact: true });
  expect(encodingOf("openai:gpt-4-turbo")).toEqual({ encoding: "cl100k_base", exact: true });
  expect(encodingOf("openai:gpt-3.5-turbo")).toEqual({ encoding: "cl100k_base", exact: true });
  expect(encodingOf("openai:gpt-9")).toEqual({ encoding: "o200k_base", exact: false });
  expect(encodingOf("anthropic:claude-sonnet-4-5").exact).toBe(false);
  expect(encodingOf("scripted").exact).toBe(false);
  expect((await createCounter("openai:gpt-5")).append("hello world")).toEqual({ tokens: 2, exact: true });
  expect((await createCounter("anthropic:claude")).append("hello world")).toEqual({ tokens: 2, exact: false });
});
