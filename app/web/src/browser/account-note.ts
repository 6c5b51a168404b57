// The note in the browser's storage of who is signed in, which the page and the console share: scripts cannot read the session cookie.

import type { User } from "@khala/client";
import type { BrowserStorage } from "./browser-storage.ts";

export const ACCOUNT_STORAGE_KEY = "khala.user";

/** An account, or `pending` while the browser is at an OpenID Provider, with the previous account in `before`. */
export type AccountNote = { id?: string; name?: string; email?: string; pending?: true; before?: User | null };

export function readNote(storage: BrowserStorage): AccountNote | null {
  const found = storage.read(ACCOUNT_STORAGE_KEY);
  return isNote(found) ? found : null;
}

/** Note the account, or that nobody is signed in. Other tabs notice it by their `storage` event. */
export function writeNote(storage: BrowserStorage, user: User | null): void {
  storage.set(ACCOUNT_STORAGE_KEY, user && JSON.stringify({ id: user.id, name: user.name, email: user.email }));
}

function isNote(found: unknown): found is AccountNote {
  return typeof found === "object" && found !== null && (!("id" in found) || typeof found.id === "string");
}
