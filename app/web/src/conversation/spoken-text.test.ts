import { expect, test } from "vitest";

import { spokenText, utterances } from "./spoken-text.ts";

test("marks, addresses and code are not read", () => {
  const markdown = "# Title\n\nUse **bold** and `code`, see [the docs](https://example.net/a).\n\n```js\nconst a = 1;\n```\n\n- one\n- [x] *two*\n> quoted";
  expect(spokenText(markdown)).toBe("Title\nUse bold and code, see the docs.\none\ntwo\nquoted");
});

test("a block of code without an end is not read, and tables are read by rows", () => {
  expect(spokenText("Before\n```\nrm -rf")).toBe("Before");
  expect(spokenText("| a | b |\n|---|---|\n| 1 | 2 |")).toBe("a, b\n1, 2");
});

test("underscores inside of words and products stay", () => {
  expect(spokenText("snake_case_name and 2 * 3 * 4")).toBe("snake_case_name and 2 * 3 * 4");
});

test("utterances are short, in order and complete", () => {
  const text = `${"A sentence of some words. ".repeat(30)}\n${"x".repeat(500)}`;
  const found = utterances(text);
  expect(found.every((one) => one.length <= 220)).toBe(true);
  expect(found.join("").replaceAll(" ", "")).toBe(text.replaceAll(/\s/g, ""));
  expect(utterances("One. Two?\nThree")).toEqual(["One. Two?", "Three"]);
  expect(utterances("")).toEqual([]);
});
