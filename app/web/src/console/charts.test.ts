import { expect, test } from "vitest";

import { daysBetween, OTHERS, scaleTop, seriesOf, timeTicks } from "./charts.ts";

test.each([
  [0, 1],
  [-1, 1],
  [1, 1],
  [1.01, 2],
  [24, 25],
  [26, 50],
  [0.0007, 0.001],
  [99, 100],
])("a scale for %d ends at %d", (largest, top) => expect(scaleTop(largest)).toBeCloseTo(top, 12));

test("the smallest series are added up, and the sum of all is the same", () => {
  const measures = [
    { group: "a", name: "x", value: 5 },
    { group: "b", name: "x", value: 1 },
    { group: "a", name: "y", value: 2 },
    { group: "b", name: "z", value: 1 },
    { group: "b", name: "w", value: 1.5 },
  ];
  expect(seriesOf(measures, ["a", "b"], 2)).toEqual([
    { name: "x", values: [5, 1] },
    { name: OTHERS, values: [2, 2.5] },
  ]);
  expect(seriesOf(measures, ["a", "b"], 4).map(({ name }) => name)).toEqual(["x", "y", "w", "z"]);
});

test("days have no gap, and are bounded", () => {
  expect(daysBetween("2026-02-27", "2026-03-02")).toEqual(["2026-02-27", "2026-02-28", "2026-03-01", "2026-03-02"]);
  expect(daysBetween("2026-03-02", "2026-03-01")).toEqual([]);
  expect(daysBetween("2020-01-01", "2026-01-01", 10)).toHaveLength(10);
});

test.each([1, 7, 950, 1226, 61_000, 4e6, 9e8, 4e10])("a span of %d ms has few ticks, from 0 on and within the span", (span) => {
  const ticks = timeTicks(span, 6);
  expect(ticks[0]).toBe(0);
  expect(ticks.length).toBeLessThanOrEqual(7);
  expect(ticks.at(-1)).toBeLessThanOrEqual(span);
});
