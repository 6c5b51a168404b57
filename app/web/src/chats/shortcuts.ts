// The keys that do something wherever the person is on the page.

import { NEW_CHAT } from "../state/strings.ts";

type Shortcut = "search" | "new" | "help";
export type Key = Pick<KeyboardEvent, "key" | "code" | "ctrlKey" | "metaKey" | "shiftKey" | "altKey" | "isComposing">;

/** What is told of the keys in the help dialog: the keys, and what they do. */
export const SHORTCUTS: readonly (readonly [keys: string, does: string])[] = [
  ["Ctrl+K or ⌘K", "Search messages"],
  ["Ctrl+Shift+O or ⌘⇧O", NEW_CHAT],
  ["Enter", "Send the message"],
  ["Shift+Enter", "Start a new line"],
  ["↑ in an empty message", "Edit your last message"],
  ["Escape", "Close or cancel"],
  ["?", "Show keyboard shortcuts"],
];

/** What a key press asks for; `typing` is whether it goes into a field, where a plain letter is a letter. */
export function shortcutOf({ key, code, ctrlKey, metaKey, shiftKey, altKey, isComposing }: Key, typing: boolean): Shortcut | null {
  if (isComposing || altKey) return null;
  const command = ctrlKey !== metaKey;
  if (command && !shiftKey && key.toLowerCase() === "k") return "search";
  if (command && shiftKey && code === "KeyO") return "new";
  return !ctrlKey && !metaKey && !typing && key === "?" ? "help" : null;
}

/** Whether what has the focus takes letters. */
export function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || target.matches("input:not([type=radio], [type=checkbox]), textarea, select"));
}
