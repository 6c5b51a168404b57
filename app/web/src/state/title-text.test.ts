import { describe, expect, it, test } from "vitest";

import type { PlanState } from "@khala/client";
import type { MessageView } from "./page-model.ts";
import { openingOf, plainText, titleFrom } from "./title-text.ts";

it("a title is the first words, cut between words", () => {
  expect(titleFrom("  Count\n for   me ")).toBe("Count for me");
  expect(titleFrom(" \n ")).toBeNull();
  expect(titleFrom("word ".repeat(30))).toBe("word word word word word word word word word…");
  expect(titleFrom("## Leases **lease**")).toBe("Leases lease");
});

// `tests/unit/test_titles.py` has the same texts for the server.
test.each([
  ["## Leases **lease**", "Leases lease"],
  ["# A\n\n> quoted\n- one\n- [x] two\n---", "A quoted one two"],
  ["**Use _this_ now**, ~~not that~~", "Use this now, not that"],
  ["***both***", "both"],
  ["Read [the docs](https://example.com/a_b) and ![a cat](cat.png)", "Read the docs and a cat"],
  ["See <https://example.com>", "See https://example.com"],
  ["Fix `__init__` and **the `x * y` part**", "Fix __init__ and the x * y part"],
  ["Why does __init__ fail?", "Why does __init__ fail?"],
  ["**See __main__.py**, (__dict__) and obj.__class__", "See __main__.py, (__dict__) and obj.__class__"],
  ["__Use it__ and __this!__", "Use it and this!"],
  ["Why does this fail?\n```python\nprint(1)\n```\nThanks", "Why does this fail? Thanks"],
  ["```sql\nSELECT 1\n```", "SELECT 1"],
  ["```\nSELECT 2", "SELECT 2"],
  ["What is 2 * 3 * 4, x**2 + y**2, snake_case_name and C#?", "What is 2 * 3 * 4, x**2 + y**2, snake_case_name and C#?"],
  ["这是**重点**内容", "这是重点内容"],
  ["#1 in line", "#1 in line"],
  ["***", "***"],
  ["", ""],
])("%j is read as %j", (markdown, text) => {
  expect(plainText(markdown)).toBe(text);
});

it("no text takes long", () => {
  const begin = performance.now();
  for (const part of ["*a ", "`", "_", "[a](", "> ", "```\n", "**_~~", "__a", " __a__"]) titleFrom(part.repeat(50_000));
  expect(performance.now() - begin).toBeLessThan(1000);
});

describe("a chat is titled by", () => {
  const plan = (title: string, createdAt: string): PlanState => ({ id: title, entry: { title, createdAt } as PlanState["entry"], stepsSince: 0, steps: [] });
  const question = { text: "Why?", head: { createdAt: "2026-02-02T00:00:00Z", authorId: "ada" } as MessageView["head"] };

  it("its first question", () => {
    expect(openingOf(question, [])).toEqual({ text: "Why?", authorId: "ada" });
    expect(openingOf(question, [plan("Later", "2026-02-03T00:00:00Z")])).toEqual({ text: "Why?", authorId: "ada" });
  });

  it("its first plan if it began with that", () => {
    expect(openingOf(null, [plan("Second", "2026-02-01T00:00:01Z"), plan("First", "2026-02-01T00:00:00Z")])).toEqual({ text: "First" });
    expect(openingOf(question, [plan("First", "2026-02-01T00:00:00Z")])).toEqual({ text: "First" });
  });

  it("nothing while it is empty", () => expect(openingOf(null, [])).toBeNull());
});
