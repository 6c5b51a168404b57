// Confirms the subscription to notifications at a visit. What else notifications need is loaded only where they are on.

import type { PreferenceOwner } from "../conversation/model-list.svelte.ts";
import { BrowserStorage } from "../browser/browser-storage.ts";
import { hideDetails } from "./push-texts.ts";

export const PUSH_STORAGE_KEY = "khala.push";
const storage = new BrowserStorage(() => localStorage);

export function confirmPushAtVisit(owner: PreferenceOwner): void {
  if (storage.get(PUSH_STORAGE_KEY) === null) return;
  void import("./push-subscription.ts").then(({ confirmPush }) => confirmPush(owner));
}

/** The account has changed: the server's subscription ends with the session, so the next visit confirms it again at once. */
export function expectConfirmation(kept: BrowserStorage): void {
  const note = kept.read(PUSH_STORAGE_KEY) as { confirmed?: Record<string, object> } | null;
  if (!note?.confirmed) return;
  const confirmed = Object.fromEntries(Object.entries(note.confirmed).map(([owner, last]) => [owner, { ...last, at: 0 }]));
  kept.write(PUSH_STORAGE_KEY, { ...note, confirmed });
}

/** An account has been left: notifications that are on their way say nothing of its chats. The next confirmation ends it. */
export function hidePushDetails(kept: BrowserStorage): void {
  if (kept.get(PUSH_STORAGE_KEY) !== null) void hideDetails();
}
