import { expect, test } from "vitest";
import { nextOrder, numbersIn, numericColumns, sortedRows } from "./table-columns.ts";

test("a column has numbers if all that is in it are numbers of one way to write them", () => {
  expect(numbersIn(["1", " -2.5 ", "", "1,234", "12 %", "1e-3", ".5"])).toEqual([1, -2.5, NaN, 1234, 12, 0.001, 0.5]);
  expect(numbersIn(["1.234,5", "2,25", "−7"])).toEqual([1234.5, 2.25, -7]);
  expect(numbersIn(["$1,200.50", "€3", "4 €"])).toEqual([1200.5, 3, 4]);
  expect(numbersIn(["1", "two"])).toBeNull();
  expect(numbersIn(["", " "])).toBeNull();
  expect(numbersIn(["01234", "5"]), "a number with a zero before it is a code").toBeNull();
  expect([numbersIn(["2026-01-02"]), numbersIn(["1.2.3"]), numbersIn(["-"]), numbersIn(["."]), numbersIn(["1,23.4"])]).toEqual([null, null, null, null, null]);
});

test("rows that are shorter than others have no value in the last columns", () => {
  expect(numericColumns([["a", "1"], ["b"], ["c", "3", "x"]])).toEqual([null, [1, NaN, 3], null]);
});

test("rows are sorted by numbers or by words, and those without a value come last", () => {
  const rows = [["b", "10"], ["a", "9"], ["", "100"], ["B", ""], ["a10", "9"], ["a9", "-1"]];
  const columns = numericColumns(rows);
  expect(sortedRows(rows, { column: 1, isDescending: false }, columns[1] ?? null, "en")).toEqual([5, 1, 4, 0, 2, 3]);
  expect(sortedRows(rows, { column: 1, isDescending: true }, columns[1] ?? null, "en")).toEqual([2, 0, 1, 4, 5, 3]);
  expect(sortedRows(rows, { column: 0, isDescending: false }, columns[0] ?? null, "en")).toEqual([1, 5, 4, 0, 3, 2]);
});

test("the head of a column sorts up, then down, then not", () => {
  const up = nextOrder(null, 2);
  const down = nextOrder(up, 2);
  expect([up, down, nextOrder(down, 2), nextOrder(down, 1)]).toEqual([{ column: 2, isDescending: false }, { column: 2, isDescending: true }, null, { column: 1, isDescending: false }]);
});
