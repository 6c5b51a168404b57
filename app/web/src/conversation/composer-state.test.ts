// @vitest-environment jsdom
import { beforeEach, expect, it } from "vitest";

import { composerState } from "./composer-state.svelte.ts";
import { loadDraft, saveDraft } from "./drafts.ts";

beforeEach(() => sessionStorage.clear());

/** A form with this text, which is not stored. */
function form(chatId: string, text: string) {
  const shown = { chatId, text, change: (edit: (before: string) => string) => void (shown.text = edit(shown.text)) };
  return shown;
}

it("changes the draft of a chat in its form, and only there", () => {
  const shown = form("a", "of a");
  const unmount = composerState.mount(shown);
  saveDraft("b", "of b");
  composerState.changeDraft("a", (text) => `${text}!`);
  composerState.changeDraft("b", (text) => (text === "of b" ? "" : text));
  expect([shown.text, loadDraft("a"), loadDraft("b")]).toEqual(["of a!", "", ""]);
  unmount();
});

it("changes what is stored once the form has been left, also if the next one was there before", () => {
  const [first, second] = [form("a", "of a"), form("b", "of b")];
  const leaveFirst = composerState.mount(first);
  saveDraft("a", "of a");
  const leaveSecond = composerState.mount(second);
  leaveFirst();
  composerState.changeDraft("a", () => "changed");
  composerState.changeDraft("b", () => "changed");
  expect([first.text, loadDraft("a"), second.text, loadDraft("b")]).toEqual(["of a", "changed", "changed", ""]);
  leaveSecond();
  composerState.changeDraft("b", () => "stored");
  expect([second.text, loadDraft("b")]).toEqual(["changed", "stored"]);
});
