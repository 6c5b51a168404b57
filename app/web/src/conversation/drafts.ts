// Drafts of messages by chat, in the session storage of this tab.

/** The server's limit for the text of a message. */
export const MAX_TEXT_CHARACTERS = 100_000;
const PREFIX = "khala.draft.";
/** Longer drafts are not stored; they exceed the limit of a message anyway. */
const MAX_DRAFT_CHARACTERS = 200_000;

export function loadDraft(chatId: string, store: Storage = sessionStorage): string {
  return store.getItem(PREFIX + chatId) ?? "";
}

/** Stores the draft; returns whether that was possible. */
export function saveDraft(chatId: string, text: string, store: Storage = sessionStorage): boolean {
  try {
    if (text && text.length <= MAX_DRAFT_CHARACTERS) store.setItem(PREFIX + chatId, text);
    else store.removeItem(PREFIX + chatId);
    return text.length <= MAX_DRAFT_CHARACTERS;
  } catch (error) {
    if (error instanceof DOMException) return false; // the storage is full or blocked; the text is still in the field
    throw error;
  }
}

/** The text in a form that Postgres can store: without NUL, and with U+FFFD for each lone surrogate. */
export function storableText(text: string): string {
  return text.replaceAll("\0", "").replace(/\p{Surrogate}/gu, "\ufffd");
}
