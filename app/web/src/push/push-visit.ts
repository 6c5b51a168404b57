// Confirms the subscription to notifications at a visit. What else notifications need is loaded only where they are on.

import type { PreferenceOwner } from "../conversation/model-list.svelte.ts";
import { BrowserStorage } from "../browser/browser-storage.ts";
import { PUSH_STORAGE_KEY } from "../browser/push-account.ts";

const storage = new BrowserStorage(() => localStorage);

export function confirmPushAtVisit(owner: PreferenceOwner): void {
  if (storage.get(PUSH_STORAGE_KEY) === null) return;
  void import("./push-subscription.ts").then(({ confirmPush }) => confirmPush(owner));
}
