import { expect, test } from "vitest";

import { tabAfter } from "./tab-keys.ts";

test("arrows move through the tabs in the direction of the text and go around, Home and End jump", () => {
  const to = (key: string, at: number, isRightToLeft = false) => tabAfter(key, at, 3, isRightToLeft);
  expect([to("ArrowRight", 2), to("ArrowDown", 0), to("ArrowLeft", 0), to("ArrowUp", 2)]).toEqual([0, 1, 2, 1]);
  expect([to("ArrowLeft", 0, true), to("ArrowRight", 0, true)]).toEqual([1, 2]);
  expect([to("Home", 1), to("End", 1), to("Tab", 1), to("a", 1)]).toEqual([0, 2, null, null]);
});
