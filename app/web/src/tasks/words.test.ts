import { expect, test } from "vitest";
import type { ToolBlock } from "../khala/frames.ts";
import { random } from "../khala/testing/random.ts";
import { argsLine, duration, givenLine, milliseconds, namesOf, pretty, SHAPES, size, standingOf, timeWords, WORDS } from "./words.ts";

const graphemes = (text: string) => [...new Intl.Segmenter("en", { granularity: "grapheme" }).segment(text)].length;
const none = { queued: 0, running: 0, completed: 0, failed: 0, blocked: 0, cancelled: 0 };
const block = (more: Partial<ToolBlock>): ToolBlock => ({ type: "tool", toolCallId: "a", tool: "grep", state: "running", ...more });

test("arguments are named, unless there is only one", () => {
  expect(argsLine({ path: "a.txt", content: "hi" })).toBe("path: a.txt, content: hi");
  expect(argsLine({ text: "n 1" })).toBe("n 1");
  expect([argsLine({}), argsLine(undefined)]).toEqual(["", ""]);
});

test("whatever the arguments are, they are one line of at most 60 characters as people count them", () => {
  const pieces = ["a", "\n", "\t", "👩‍👩‍👧‍👦", "é", "e\u0301", "\u202e", "\u0000", "漢", "🇩🇪", " ", "\ud800", '"'];
  for (let seed = 1; seed <= 300; seed++) {
    const { below: next } = random(seed);
    const text = () => Array.from({ length: next(90) }, () => pieces[next(pieces.length)]).join("");
    const line = argsLine({ [text()]: text(), b: { c: [text()] } });
    expect(graphemes(line)).toBeLessThanOrEqual(60);
    expect(line).not.toMatch(/[\p{Cc}\u2028\u202e]/u);
  }
});

test("a line that is cut ends with an ellipsis, and no letter is cut in two", () => {
  expect(argsLine({ a: "👩‍👩‍👧‍👦".repeat(61) })).toBe(`${"👩‍👩‍👧‍👦".repeat(59)}…`);
  expect(argsLine({ a: "x".repeat(60) })).toBe("x".repeat(60));
});

test("arguments in a blob are told by their beginning", () => {
  const blob = { blobId: "x", size: 9_000, sha256: "ab", mediaType: "application/json", preview: '{\n  "path": "a"' };
  expect(givenLine(block({ argsBlob: blob }))).toBe('{ "path": "a"');
});

test("a step is told by how its calls stand and which they are", () => {
  expect(standingOf({ ...none, completed: 3, failed: 1 }, 4)).toBe("3 of 4 done, 1 failed");
  expect(standingOf({ ...none, running: 1, blocked: 2 }, 3)).toBe("0 of 3 done, 2 waiting");
  expect(namesOf(new Map([["todo_add", 30], ["glob", 1]]))).toBe("todo_add ×30, glob");
  expect(namesOf(new Map(["a", "b", "c", "d", "e"].map((name) => [name, 1])))).toBe("a, b, c, d …");
});

test("times and sizes in words", () => {
  expect([milliseconds(840), milliseconds(1234), milliseconds(0.4)]).toEqual(["840 ms", "1.2 s", "0 ms"]);
  expect([-5, 7_900, 75_000, 11_400_000, 180_000_000].map(duration)).toEqual(["0 s", "7 s", "1 min 15 s", "3 h 10 min", "2 days"]);
  expect([size(1), size(840), size(2048), size(3.4e6)]).toEqual(["1 byte", "840 bytes", "2.0 kB", "3.4 MB"]);
});

test("what runs counts, what has ended says how long it took", () => {
  expect(timeWords(block({}), 1_000, 8_500)).toBe("running 7 s");
  expect(timeWords(block({ state: "completed", durationMs: 1234 }), 0, 0)).toBe("1.2 s");
  expect(timeWords(block({ state: "completed" }), 0, 0)).toBe("done");
  expect(timeWords(block({ state: "failed", durationMs: 12 }), 0, 0)).toBe("failed · 12 ms");
  expect(timeWords(block({ state: "blocked" }), 0, 0)).toBe("needs approval");
});

test("the six states differ in shape and in words", () => {
  expect([new Set(Object.values(SHAPES)).size, new Set(Object.values(WORDS)).size]).toEqual([6, 6]);
});

test("JSON that is to be approved of hides nothing", () => {
  expect(pretty({ a: "x\u200by" })).toBe('{\n  "a": "x\\u200by"\n}');
});
