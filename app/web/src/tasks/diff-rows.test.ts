import { expect, test } from "vitest";
import { diffRows } from "./diff-rows.ts";

const lines = (count: number) => Array.from({ length: count }, (_, index) => `line ${index + 1}`);

test("rows have the numbers of both texts, and say how many lines are not shown", () => {
  const before = lines(20);
  const after = before.flatMap((line, index) => (index === 9 ? ["other", "more"] : [line]));
  const rows = diffRows(before.join("\n"), after.join("\n"));
  expect(rows.map((row) => (row.kind === "gap" ? row.count : [row.kind, row.before, row.after]))).toEqual([
    7,
    ["same", 8, 8],
    ["same", 9, 9],
    ["gone", 10, null],
    ["new", null, 10],
    ["new", null, 11],
    ["same", 11, 12],
    ["same", 12, 13],
    8,
  ]);
});

test("texts that are the same are one gap", () => {
  expect(diffRows("a\nb", "a\nb")).toEqual([{ kind: "gap", count: 2 }]);
});

test("the same line twice is found at its own place", () => {
  const rows = diffRows("x\nx\nx\nx\nx\nend", "x\nx\nx\nx\nx\nfin");
  expect(rows.map((row) => (row.kind === "gap" ? row.count : row.line))).toEqual([3, "x", "x", "end", "fin"]);
});

function marked(before: string, after: string): (string | null)[] {
  return diffRows(before, after).flatMap((row) => (row.kind === "gap" ? [] : [row.marked && row.line.slice(...row.marked)]));
}

test("in a line that replaces another one, the words that differ are marked", () => {
  expect(marked("await renew(seconds=30)", "await renew(seconds=60)")).toEqual(["30", "60"]);
  expect(marked("let colour = 1;", "let color = 1;")).toEqual(["colour", "color"]);
  expect(marked("a = 1", "a = 1 + 2")).toEqual(["", " + 2"]);
  expect(marked("naïve 👩‍🔬 text", "naïve 👩‍🔧 text")).toEqual(["👩‍🔬", "👩‍🔧"]);
  expect(marked("one\ntwo", "three\nfour"), "nothing is the same").toEqual([null, null, null, null]);
  expect(marked("a b\nc", "a d"), "more lines than replace them").toEqual([null, null, null]);
  expect(marked(`a${"x".repeat(2_000)}`, `b${"x".repeat(2_000)}`)).toEqual([null, null]);
});
