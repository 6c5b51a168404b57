import { expect, test } from "vitest";

import { tidyName } from "./folder-names.ts";

test.each([["  Trips ", "Trips"], ["Trips\u00a0and\n\ttravels", "Trips and travels"], [" \t ", ""]])("%j is the name %j", (typed, name) => {
  expect(tidyName(typed)).toBe(name);
});
