import { expect, test } from "vitest";
import { random } from "@khala/client/testing/random.ts";
import { type TreeRow, JsonTreeModel } from "./json-tree-model.ts";

const told = (rows: readonly TreeRow[]) => rows.map(({ level, name, place, text }) => `${"  ".repeat(level - 1)}${name ?? place - 1}: ${text}`);

test("what is small is open at first, and reads as JSON", () => {
  const tree = new JsonTreeModel({ path: "a.txt", todos: [], nested: { n: [1, null], on: true } });
  expect(told(tree.rows(0, 100))).toEqual(['"path": "a.txt"', '"todos": []', '"nested": {…}', '  "n": […]', "    0: 1", "    1: null", '  "on": true']);
  expect(tree.count).toBe(7);
});

test("what is closed takes what is in it out of sight, which closes there, too", () => {
  const tree = new JsonTreeModel({ a: { b: { c: 1 } }, d: 2 });
  const before = told(tree.rows(0, 100));
  tree.setOpen("0", false);
  expect(told(tree.rows(0, 100))).toEqual(['"a": {…}', '"d": 2']);
  tree.setOpen("0", true);
  expect(told(tree.rows(0, 100))).toEqual(['"a": {…}', '  "b": {…}', '"d": 2']);
  tree.setOpen("0/0", true);
  expect(told(tree.rows(0, 100))).toEqual(before);
});

test("a row knows its place, its parent and how many are in it", () => {
  const row = new JsonTreeModel([{ a: 1, b: [7] }]).rows(2, 1)[0];
  expect(row).toMatchObject({ index: 2, path: "0/1", level: 2, place: 2, beside: 2, parent: 0, size: 1, isOpen: true, kind: "array" });
});

test("what can't be opened, or is not there, changes nothing", () => {
  const tree = new JsonTreeModel({ a: 1, b: [] });
  for (const path of ["0", "1", "7", "7/1", "", "x"]) tree.setOpen(path, true);
  expect(tree.count).toBe(2);
});

test("whatever is open, pages put together are the whole, and every row is at its number", () => {
  for (let seed = 1; seed <= 25; seed++) {
    const { below: next } = random(seed);
    const made = (depth: number): unknown => {
      const size = next(5);
      if (depth === 0 || size === 0) return next(100);
      const values = Array.from({ length: size }, () => made(depth - 1));
      return next(2) ? values : Object.fromEntries(values.map((value, index) => [`k${index}`, value]));
    };
    const tree = new JsonTreeModel([made(5), made(5), made(4)]);
    for (let turn = 0; turn < 10; turn++) {
      const whole = tree.rows(0, 10_000);
      expect(whole.map(({ index }) => index)).toEqual(Array.from({ length: tree.count }, (_, index) => index));
      const size = 1 + next(7);
      const pages = Array.from({ length: Math.ceil(tree.count / size) }, (_, page) => tree.rows(page * size, size)).flat();
      expect(pages).toEqual(whole);
      const strays = whole.filter(({ path, parent }) => parent >= 0 && !path.startsWith(`${whole[parent]?.path ?? "?"}/`));
      expect(strays).toEqual([]);
      const row = whole[next(whole.length)];
      const before = tree.count;
      if (row) tree.setOpen(row.path, !row.isOpen);
      if (row && row.size > 0 && !row.isOpen) expect(tree.count).toBeGreaterThan(before);
    }
  }
});

test("a list of a million begins closed below and is read page by page", () => {
  const tree = new JsonTreeModel({ list: Array.from({ length: 1_000_000 }, (_, index) => index), other: 1 });
  expect(tree.count).toBe(2);
  tree.setOpen("0", true);
  expect(told(tree.rows(400_000, 2))).toEqual(["  399999: 399999", "  400000: 400000"]);
});

test("letters that would not be seen are escaped, and long texts cut", () => {
  const [row, long] = new JsonTreeModel(["a\u202eb", "x".repeat(5_000)]).rows(0, 2);
  expect(row?.text).toBe('"a\\u202eb"');
  expect(long?.text.length).toBeLessThan(1_100);
  expect(long?.text.endsWith("…")).toBe(true);
});
