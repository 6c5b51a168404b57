// The chats for which the person has switched off the agent of their folder, kept in this browser.

import { SvelteSet } from "svelte/reactivity";

import { BrowserStorage } from "../browser/browser-storage.ts";

const STORAGE_KEY = "khala.chats.without-agent";
/** Beyond this number of chats the one that was added first is dropped. */
const MAX_CHATS = 200;

export class ChatsWithoutAgent {
  readonly #storage: BrowserStorage;
  readonly #ids: SvelteSet<string>;

  constructor(storage = new BrowserStorage(() => localStorage)) {
    this.#storage = storage;
    const stored = storage.read(STORAGE_KEY);
    this.#ids = new SvelteSet(Array.isArray(stored) ? stored.filter((id) => typeof id === "string") : []);
  }

  has(id: string): boolean {
    return this.#ids.has(id);
  }

  add(id: string): void {
    this.#ids.add(id);
    this.#storage.write(STORAGE_KEY, [...this.#ids].slice(-MAX_CHATS));
  }
}
