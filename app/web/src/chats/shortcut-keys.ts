// The keys of shortcuts as this machine's keyboard names them, and as `aria-keyshortcuts` does.

import { m } from "../i18n/messages.ts";

export type ShortcutLabel = { readonly keys: string; readonly aria: string };

const IS_APPLE = /^(Mac|iP)/.test(navigator.platform);

export const SEARCH_KEYS: ShortcutLabel = IS_APPLE ? { keys: "⌘K", aria: "Meta+K" } : { keys: m.ctrl_k(), aria: "Control+K" };
export const NEW_CHAT_KEYS: ShortcutLabel = IS_APPLE ? { keys: "⌘⇧O", aria: "Meta+Shift+O" } : { keys: m.ctrl_shift_o(), aria: "Control+Shift+O" };
export const SETTINGS_KEYS: ShortcutLabel = IS_APPLE ? { keys: "⌘,", aria: "Meta+," } : { keys: m.ctrl_comma(), aria: "Control+," };
export const LIST_KEYS: ShortcutLabel = IS_APPLE ? { keys: "⌘B", aria: "Meta+B" } : { keys: m.ctrl_b(), aria: "Control+B" };
export const HELP_KEYS: ShortcutLabel = { keys: "?", aria: "?" };
