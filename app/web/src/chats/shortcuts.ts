// Keyboard shortcuts of the whole page.

type Shortcut = "palette" | "new" | "list" | "settings" | "help";
export type Key = Pick<KeyboardEvent, "key" | "code" | "ctrlKey" | "metaKey" | "shiftKey" | "altKey" | "isComposing">;

/** The shortcut of a key press, or null. While `typing` in a field, plain letters are no shortcuts. */
export function shortcutOf({ key, code, ctrlKey, metaKey, shiftKey, altKey, isComposing }: Key, typing: boolean): Shortcut | null {
  if (isComposing || altKey) return null;
  const command = ctrlKey !== metaKey;
  if (command && !shiftKey && key.toLowerCase() === "k") return "palette";
  if (command && !shiftKey && key.toLowerCase() === "b") return "list";
  if (command && !shiftKey && key === ",") return "settings";
  if (command && shiftKey && code === "KeyO") return "new";
  return !ctrlKey && !metaKey && !typing && key === "?" ? "help" : null;
}

/** Whether the element takes text input. */
export function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || target.matches("input:not([type=radio], [type=checkbox]), textarea, select"));
}
