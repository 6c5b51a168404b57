import { expect, test } from "vitest";

import { menuPlace, nextItem } from "./menu-place.ts";

const WINDOW = { width: 400, height: 600, isRightToLeft: false };
const MENU = { width: 200, height: 100 };

test("a menu stands above its button, and below where there is no room", () => {
  expect(menuPlace({ top: 500, bottom: 520, left: 50, right: 100 }, MENU, WINDOW)).toEqual({ top: 394, left: 50, maxHeight: 420 });
  expect(menuPlace({ top: 50, bottom: 70, left: 50, right: 100 }, MENU, WINDOW)).toEqual({ top: 76, left: 50, maxHeight: 420 });
});

test("a menu that is too high gets the larger room", () => {
  const place = menuPlace({ top: 400, bottom: 420, left: 50, right: 100 }, { width: 200, height: 900 }, WINDOW);
  expect(place).toEqual({ top: 8, left: 50, maxHeight: 386 });
  // It never covers the whole window.
  expect(menuPlace({ top: 560, bottom: 580, left: 50, right: 100 }, { width: 200, height: 900 }, WINDOW)).toEqual({ top: 134, left: 50, maxHeight: 420 });
});

test("a menu stays in the window, and begins at the right in right-to-left languages", () => {
  const anchor = { top: 500, bottom: 520, left: 350, right: 390 };
  expect(menuPlace(anchor, MENU, WINDOW).left).toBe(192);
  expect(menuPlace(anchor, MENU, { ...WINDOW, isRightToLeft: true }).left).toBe(190);
  expect(menuPlace({ ...anchor, left: 10, right: 60 }, MENU, { ...WINDOW, isRightToLeft: true }).left).toBe(8);
});

test("the arrow keys go round", () => {
  expect([nextItem("ArrowDown", 2, 3), nextItem("ArrowUp", 0, 3), nextItem("ArrowUp", -1, 3), nextItem("ArrowDown", -1, 3)]).toEqual([0, 2, 2, 0]);
  expect([nextItem("Home", 2, 3), nextItem("End", 0, 3), nextItem("a", 0, 3), nextItem("Home", 0, 0)]).toEqual([0, 2, null, null]);
});
