import { expect, test } from "vitest";

import { changeQuery, parameterOf, pathOf } from "./paths.ts";

test("a path has the view, the id and the filters that are set", () => {
  expect(pathOf("")).toBe("/console");
  expect(pathOf("runs", "", { state: "error", q: "" })).toBe("/console/runs?state=error");
  expect(pathOf("runs", "a/b c")).toBe("/console/runs/a%2Fb%20c");
});

test("filters are changed one by one, and an empty one is removed", () => {
  expect(changeQuery("?state=error", { q: "a b" })).toBe("?state=error&q=a+b");
  expect(changeQuery("?state=error&q=x", { state: "" })).toBe("?q=x");
  expect(changeQuery("?state=error", { state: "" })).toBe("");
  expect(parameterOf("?q=a+b", "q")).toBe("a b");
  expect(parameterOf("", "q")).toBe("");
});
