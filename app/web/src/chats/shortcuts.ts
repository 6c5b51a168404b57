// Keyboard shortcuts of the whole page.

import { NEW_CHAT } from "../state/strings.ts";
import { m } from "../i18n/messages.ts";

type Shortcut = "palette" | "new" | "list" | "settings" | "help";
export type Key = Pick<KeyboardEvent, "key" | "code" | "ctrlKey" | "metaKey" | "shiftKey" | "altKey" | "isComposing">;

/** The list in the help dialog. */
export const SHORTCUTS: readonly (readonly [keys: string, does: string])[] = [
  [m.ctrl_k_or_k(), m.search_chats_messages_and_actions()],
  [m.ctrl_shift_o_or_o(), NEW_CHAT],
  [m.ctrl_b_or_b(), m.show_or_hide_chat_list()],
  [m.ctrl_comma_or(), m.settings()],
  [m.key_enter(), m.send_the_message()],
  [m.key_shift_enter(), m.start_a_new_line()],
  [m.in_an_empty_message(), m.edit_your_last_message()],
  [m.key_escape(), m.close_or_cancel()],
  ["?", m.show_keyboard_shortcuts()],
];

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
