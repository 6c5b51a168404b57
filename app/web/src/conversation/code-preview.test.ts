// @vitest-environment jsdom
import { expect, test } from "vitest";

import { known } from "./highlight.ts";
import { languageOf } from "./markdown.ts";
import { previewDocument } from "./code-preview.ts";

const preview = (info: string, code: string): string | null => previewDocument(languageOf(info), code);

test("HTML can be looked at, and a script that is marked as a component", () => {
  expect(preview("html", "<b>x</b>")).toBe("<b>x</b>");
  expect(preview("HTML component", "<b>x</b>")).toBe("<b>x</b>");
  expect(preview("js title=a component", "let a = '</script>';")).toMatch(/<div id="root">.*let a = '<\\\/script>';<\/script>$/);
});

test.each([
  ["a script that is not marked", "js", "1"],
  ["another language, though marked", "python component", "1"],
  ["nothing", "html", " \n"],
  ["too much", "html", "x".repeat(200_001)],
])("%s can't", (_, info, code) => {
  expect(preview(info, code)).toBeNull();
});

test("what is marked is coloured as what it is", () => {
  expect([languageOf("js component"), known(languageOf("js component"))]).toEqual(["js component", "javascript"]);
});
