import { expect, test } from "vitest";
import { random } from "@khala/client/testing/random.ts";
import { diffLines, excerpt } from "./line-diff.ts";

const shown = (before: string, after: string) => diffLines(before, after).map(({ kind, line }) => `${{ same: " ", gone: "-", new: "+" }[kind]}${line}`);

test("a line that was changed is one that is gone and one that is new", () => {
  expect(shown('{\n  "path": "a.txt"\n}', '{\n  "path": "b.txt"\n}')).toEqual([" {", '-  "path": "a.txt"', '+  "path": "b.txt"', " }"]);
});

test("lines that were moved or put in leave the others as they are", () => {
  expect(shown("a\nb\nc", "a\nx\nb\nc\ny")).toEqual([" a", "+x", " b", " c", "+y"]);
  expect(shown("a\nb\nc\nd", "b\nd")).toEqual(["-a", " b", "-c", " d"]);
});

test("whatever the texts are, what is gone and the same is the one, what is new and the same the other, and as much is the same as can be", () => {
  for (let seed = 1; seed <= 400; seed++) {
    const { below: next } = random(seed);
    const text = () => Array.from({ length: 1 + next(9) }, () => "abc"[next(3)]).join("\n");
    const [before, after] = [text(), text()];
    const found = diffLines(before, after);
    const without = (kind: string) => found.filter((change) => change.kind !== kind).map(({ line }) => line).join("\n");
    expect([without("new"), without("gone")]).toEqual([before, after]);
    expect(found.filter(({ kind }) => kind === "same").length).toBe(longestCommon(before.split("\n"), after.split("\n")));
  }
});

/** Slow and plainly right. */
function longestCommon(one: string[], other: string[]): number {
  const [[a, ...as], [b, ...bs]] = [one, other];
  if (a === undefined || b === undefined) return 0;
  return a === b ? 1 + longestCommon(as, bs) : Math.max(longestCommon(as, other), longestCommon(one, bs));
}

test("very long texts are compared in bounded time, and still rightly", () => {
  const [before, after] = [1, 2].map((seed) => Array.from({ length: 5_000 }, (_, index) => `${index % seed} ${seed} ${index}`));
  const found = diffLines(["same", ...(before ?? [])].join("\n"), ["same", ...(after ?? [])].join("\n"));
  expect(found[0]).toEqual({ kind: "same", line: "same" });
  expect(found.filter(({ kind }) => kind !== "new").map(({ line }) => line)).toEqual(["same", ...(before ?? [])]);
  expect(found.filter(({ kind }) => kind !== "gone").map(({ line }) => line)).toEqual(["same", ...(after ?? [])]);
});

test("an excerpt has what changes and two lines around it", () => {
  const before = Array.from({ length: 20 }, (_, index) => `line ${index}`);
  const after = before.map((line, index) => (index === 10 ? "other" : line));
  const found = excerpt(diffLines(before.join("\n"), after.join("\n")));
  expect(found.map((change) => change?.line ?? null)).toEqual([null, "line 8", "line 9", "line 10", "other", "line 11", "line 12", null]);
  expect(excerpt(diffLines("a", "a"))).toEqual([null]);
});
