// @vitest-environment jsdom

import { expect, test } from "vitest";
import { loadFileDraft, saveFileDraft } from "./file-drafts.ts";

/** Whether the browser would ask before the page is left. */
function asks(): boolean {
  return !dispatchEvent(new Event("beforeunload", { cancelable: true }));
}

test("the browser asks before the page is left as long as there is any draft", () => {
  expect(asks()).toBe(false);
  saveFileDraft("c", "a.md", { before: "", text: "x" });
  saveFileDraft("c", "a.md", { before: "", text: "xy" });
  saveFileDraft("c", "b.md", { before: "", text: "z" });
  expect([asks(), loadFileDraft("c", "a.md")?.text]).toEqual([true, "xy"]);
  saveFileDraft("c", "a.md", null);
  expect(asks()).toBe(true);
  saveFileDraft("c", "b.md", null);
  expect(asks()).toBe(false);
});
