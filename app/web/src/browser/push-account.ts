// What a change of the account means for this browser's subscription to notifications. The page and the console share it.

import type { BrowserStorage } from "./browser-storage.ts";
import { hideDetails } from "./push-texts.ts";

export const PUSH_STORAGE_KEY = "khala.push";
/** The person of all chats as a guest. */
export const GUEST = "";

/** The part of the stored note that is read here; `confirmed` is by account, and by key for the chats of a guest. */
type SharedNote = { people?: string[]; confirmed?: Record<string, object> };

function read(storage: BrowserStorage): SharedNote | null {
  return storage.read(PUSH_STORAGE_KEY) as SharedNote | null;
}

/** The account has changed: the server's subscription ends with the session, so the next visit confirms it again at once. */
export function expectConfirmation(storage: BrowserStorage): void {
  const note = read(storage);
  if (!note?.confirmed) return;
  const confirmed = Object.fromEntries(Object.entries(note.confirmed).map(([owner, last]) => [owner, { ...last, at: 0 }]));
  storage.write(PUSH_STORAGE_KEY, { ...note, confirmed });
}

/** An account has been left: notifications that are on their way say nothing of its chats. The next confirmation ends it. */
export function hidePushDetails(storage: BrowserStorage): void {
  if (storage.get(PUSH_STORAGE_KEY) !== null) void hideDetails();
}

/** An account has claimed the chats of these keys. If notifications were on for one of them, they are on for the account. */
export function claimPush(storage: BrowserStorage, keys: readonly string[], accountId: string): void {
  const { people = [], confirmed = {}, ...rest } = read(storage) ?? {};
  if (!people.includes(GUEST) || !keys.some((key) => Object.hasOwn(confirmed, key))) return;
  const others = Object.fromEntries(Object.entries(confirmed).filter(([owner]) => !keys.includes(owner)));
  storage.write(PUSH_STORAGE_KEY, { ...rest, people: [...new Set([...people, accountId])], confirmed: others });
}
