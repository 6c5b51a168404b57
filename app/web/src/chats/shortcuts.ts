// Keyboard shortcuts of the whole page.

import { NEW_CHAT } from "../state/strings.ts";

type Shortcut = "search" | "new" | "help";
export type Key = Pick<KeyboardEvent, "key" | "code" | "ctrlKey" | "metaKey" | "shiftKey" | "altKey" | "isComposing">;

/** The list in the help dialog. */
export const SHORTCUTS: readonly (readonly [keys: string, does: string])[] = [
  ["Ctrl+K or ⌘K", "Search messages"],
  ["Ctrl+Shift+O or ⌘⇧O", NEW_CHAT],
  ["Enter", "Send the message"],
  ["Shift+Enter", "Start a new line"],
  ["↑ in an empty message", "Edit your last message"],
  ["Escape", "Close or cancel"],
  ["?", "Show keyboard shortcuts"],
];

/** The shortcut of a key press, or null. While `typing` in a field, plain letters are no shortcuts. */
export function shortcutOf({ key, code, ctrlKey, metaKey, shiftKey, altKey, isComposing }: Key, typing: boolean): Shortcut | null {
  if (isComposing || altKey) return null;
  const command = ctrlKey !== metaKey;
  if (command && !shiftKey && key.toLowerCase() === "k") return "search";
  if (command && shiftKey && code === "KeyO") return "new";
  return !ctrlKey && !metaKey && !typing && key === "?" ? "help" : null;
}

/** Whether the element takes text input. */
export function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || target.matches("input:not([type=radio], [type=checkbox]), textarea, select"));
}
