import { expect, test } from "vitest";

import { type Key, shortcutOf } from "./shortcuts.ts";

const NONE: Key = { key: "", code: "", ctrlKey: false, metaKey: false, shiftKey: false, altKey: false, isComposing: false };

test.each([
  ["Ctrl+K", { key: "k", code: "KeyK", ctrlKey: true }, "palette"],
  ["⌘K with caps lock", { key: "K", code: "KeyK", metaKey: true }, "palette"],
  ["Ctrl+B", { key: "b", code: "KeyB", ctrlKey: true }, "list"],
  ["⌘B with caps lock", { key: "B", code: "KeyB", metaKey: true }, "list"],
  ["Ctrl+Shift+O", { key: "O", code: "KeyO", ctrlKey: true, shiftKey: true }, "new"],
  ["Ctrl+comma", { key: ",", code: "Comma", ctrlKey: true }, "settings"],
  ["Ctrl+Shift+O on a Greek keyboard", { key: "Ο", code: "KeyO", ctrlKey: true, shiftKey: true }, "new"],
] as const)("%s works while typing, too", (_, key, shortcut) => {
  expect(shortcutOf({ ...NONE, ...key }, true)).toBe(shortcut);
  expect(shortcutOf({ ...NONE, ...key }, false)).toBe(shortcut);
});

test("a question mark is a letter while typing, and asks for help else", () => {
  const key = { ...NONE, key: "?", code: "Slash", shiftKey: true };
  expect(shortcutOf(key, true)).toBeNull();
  expect(shortcutOf(key, false)).toBe("help");
});

test.each([
  ["K alone", { key: "k" }],
  ["Ctrl+Shift+K, the browser's console", { key: "K", code: "KeyK", ctrlKey: true, shiftKey: true }],
  ["B alone", { key: "b" }],
  ["Ctrl+Shift+B, the browser's bookmarks", { key: "B", code: "KeyB", ctrlKey: true, shiftKey: true }],
  ["Ctrl+O, the browser's", { key: "o", code: "KeyO", ctrlKey: true }],
  ["AltGr, which is Ctrl+Alt", { key: "k", ctrlKey: true, altKey: true }],
  ["a key within a composition", { key: "?", isComposing: true }],
])("%s is not ours", (_, key) => {
  expect(shortcutOf({ ...NONE, ...key }, false)).toBeNull();
});
