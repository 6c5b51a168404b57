// A set of chats, kept in this browser.

import { SvelteSet } from "svelte/reactivity";

import { BrowserStorage } from "../browser/browser-storage.ts";

/** Beyond this number of chats the one that was added first is dropped. */
const MAX_CHATS = 200;

export class StoredChats {
  readonly #name: string;
  readonly #storage: BrowserStorage;
  readonly #ids: SvelteSet<string>;

  /** `name` is its name in the storage. */
  constructor(name: string, storage = new BrowserStorage(() => localStorage)) {
    this.#name = name;
    this.#storage = storage;
    const stored = storage.read(name);
    this.#ids = new SvelteSet(Array.isArray(stored) ? stored.filter((id) => typeof id === "string") : []);
  }

  has(id: string): boolean {
    return this.#ids.has(id);
  }

  add(id: string): void {
    if (this.#ids.has(id)) return;
    this.#ids.add(id);
    this.#storage.write(this.#name, [...this.#ids].slice(-MAX_CHATS));
  }
}
