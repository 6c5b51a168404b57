import { expect, test } from "vitest";
import { countLines, numbersOf } from "./code-lines.ts";
import { shownView, viewsOf } from "./item-views.ts";

test("a file has the views that show something of it", () => {
  expect([viewsOf("markdown", 1), viewsOf("code", 1), viewsOf("code", 2), viewsOf("image", 2)]).toEqual([["preview", "code"], ["code"], ["code", "changes"], ["preview"]]);
});

test("a view that the shown version does not have is replaced by the first one", () => {
  const views = viewsOf("table", 3);
  expect([shownView("changes", views, 1), shownView("changes", views, 0), shownView("code", views, 0)]).toEqual(["changes", "preview", "code"]);
  expect(shownView("preview", viewsOf("code", 1), 0)).toBe("code");
});

test("lines are numbered as they are shown: a line break at the end begins no line", () => {
  expect(["", "a", "a\n", "a\n\n", "\n", "a\nb\nc"].map(countLines)).toEqual([1, 1, 1, 2, 1, 3]);
  expect(numbersOf("a\nb\n")).toBe("1\n2");
});
