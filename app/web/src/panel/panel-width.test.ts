import { expect, test } from "vitest";

import { clampWidth, defaultWidth, parseWidth, widthAfterKey, widthLimits } from "./panel-width.ts";

test("the panel and the conversation both keep room", () => {
  expect(widthLimits(1176, 1440, 16)).toEqual({ min: 320, max: 824 });
  expect(widthLimits(800, 800, 16)).toEqual({ min: 320, max: 448 });
  // Where there is too little room for both, in a narrow window with large text, the panel keeps its least width.
  expect(widthLimits(800, 800, 21)).toEqual({ min: 360, max: 360 });
  expect(clampWidth(2000, { min: 320, max: 824 })).toBe(824);
  expect(clampWidth(1, { min: 320, max: 824 })).toBe(320);
  expect(defaultWidth(44, 1440, 16)).toBe(648);
  expect(defaultWidth(30, 1440, 16)).toBe(480);
});

test("an arrow moves the edge to its side, in both directions of text", () => {
  const limits = { min: 320, max: 800 };
  expect(widthAfterKey("ArrowLeft", 400, limits, false)).toBe(416);
  expect(widthAfterKey("ArrowRight", 400, limits, false)).toBe(384);
  expect(widthAfterKey("ArrowLeft", 400, limits, true)).toBe(384);
  expect(widthAfterKey("ArrowRight", 795, limits, true)).toBe(800);
  expect([widthAfterKey("Home", 400, limits, false), widthAfterKey("End", 400, limits, false)]).toEqual([320, 800]);
  expect(widthAfterKey("ArrowUp", 400, limits, false)).toBeNull();
});

test("only a width is read from the storage", () => {
  expect([parseWidth("420"), parseWidth(null), parseWidth("wide"), parseWidth(""), parseWidth("-3")]).toEqual([420, null, null, null, null]);
});
