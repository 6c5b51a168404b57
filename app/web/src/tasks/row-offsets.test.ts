import { expect, test } from "vitest";
import { random } from "@khala/client/testing/random.ts";
import { RowOffsets } from "./row-offsets.ts";

test("before anything is measured all rows are as high as was guessed", () => {
  const offsets = new RowOffsets(10, 36);
  expect([offsets.total, offsets.before(3), offsets.at(0), offsets.at(107), offsets.at(108)]).toEqual([360, 108, 0, 2, 3]);
});

test("whatever is measured, and however many rows come and go, offsets are sums of heights", () => {
  for (let seed = 1; seed <= 25; seed++) {
    const { below: next } = random(seed);
    const offsets = new RowOffsets(next(20), 30);
    let heights = Array.from({ length: offsets.count }, () => 30);
    for (let turn = 0; turn < 40; turn++) {
      const [index, height] = [next(heights.length + 1), 1 + next(200)];
      if (next(5) === 0) {
        const count = next(60);
        heights = Array.from({ length: count }, (_, at) => heights[at] ?? 30);
        offsets.resize(count);
      } else if (index < heights.length) {
        expect(offsets.set(index, height)).toBe(height - (heights[index] ?? 0));
        heights[index] = height;
      }
      let sum = 0;
      const wrong = heights.filter((each, at) => {
        const isRight = offsets.before(at) === sum && offsets.at(sum) === at && offsets.at(sum + each - 1) === at;
        sum += each;
        return !isRight;
      });
      expect([wrong, offsets.total]).toEqual([[], sum]);
    }
  }
});

test("of 500 rows only those in sight and a few more are asked for", () => {
  const offsets = new RowOffsets(500, 36);
  expect(offsets.within(3600, 4320, 5)).toEqual({ from: 95, to: 126 });
  expect(offsets.within(-5000, -4000, 5)).toEqual({ from: 0, to: 6 });
  expect(offsets.within(50_000, 60_000, 5)).toEqual({ from: 494, to: 500 });
  expect(new RowOffsets(0, 36).within(0, 100, 5)).toEqual({ from: 0, to: 0 });
});
