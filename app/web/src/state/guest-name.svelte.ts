// The name that a person without an account gives in shared chats, kept in this browser.

import { BrowserStorage } from "../browser/browser-storage.ts";

const STORAGE_KEY = "khala.guest-name";
export const MAX_GUEST_NAME_CHARACTERS = 80;

/** A name in one line, without spaces at its ends, of at most 80 characters. */
export function tidyName(name: string): string {
  return Array.from(name.replace(/[\s\p{Cc}]+/gu, " ").trim()).slice(0, MAX_GUEST_NAME_CHARACTERS).join("").trim();
}

class GuestName {
  readonly #storage = new BrowserStorage(() => localStorage);
  #name = $state(tidyName(this.#storage.get(STORAGE_KEY) ?? ""));

  /** The name; empty if none was given. */
  get name(): string {
    return this.#name;
  }

  set name(name: string) {
    this.#name = tidyName(name);
    this.#storage.set(STORAGE_KEY, this.#name || null);
  }
}

export const guestName = new GuestName();
