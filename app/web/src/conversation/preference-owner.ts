// Whose preferences the page reads and changes.

import { page } from "../state/page.svelte.ts";
import { preferenceOwner } from "./model-choice.ts";
import type { PreferenceOwner } from "./model-list.svelte.ts";

/** Whose preferences apply to the open chat; null for a share link. */
export function currentOwner(): PreferenceOwner | null {
  return preferenceOwner(page.account.user?.id ?? null, page.chat?.keys ?? {});
}
