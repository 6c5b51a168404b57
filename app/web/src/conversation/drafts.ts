// What was written but not sent, by chat: kept for as long as the tab is, in this tab only.

/** The longest text (letters) that the server takes. */
export const LONGEST_TEXT = 100_000;
const PREFIX = "khala.draft.";
/** Longer texts can't be sent, either. */
const LONGEST = 200_000;

export function draftOf(chatId: string, store: Storage = sessionStorage): string {
  return store.getItem(PREFIX + chatId) ?? "";
}

/** Keep the text; whether that was possible. */
export function keepDraft(chatId: string, text: string, store: Storage = sessionStorage): boolean {
  try {
    if (text && text.length <= LONGEST) store.setItem(PREFIX + chatId, text);
    else store.removeItem(PREFIX + chatId);
    return text.length <= LONGEST;
  } catch (error) {
    if (error instanceof DOMException) return false; // full, or closed to us: the text is still in the field
    throw error;
  }
}

/** The text as it can be stored: without NUL, and with a mark for each half of a letter. */
export function sendable(text: string): string {
  return text.replaceAll("\0", "").replace(/\p{Surrogate}/gu, "\ufffd");
}
