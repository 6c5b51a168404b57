// The folders of the chat list whose chats are hidden, kept in this browser.

import { SvelteSet } from "svelte/reactivity";

import { BrowserStorage } from "../browser/browser-storage.ts";

const STORAGE_KEY = "khala.folders.closed";
const MAX_NAMES = 500;

class ClosedFolders {
  readonly #storage = new BrowserStorage(() => localStorage);
  readonly names: SvelteSet<string>;

  constructor() {
    const stored = this.#storage.read(STORAGE_KEY);
    this.names = new SvelteSet(Array.isArray(stored) ? stored.filter((name) => typeof name === "string") : []);
  }

  toggle(name: string): void {
    if (!this.names.delete(name)) this.names.add(name);
    this.#storage.write(STORAGE_KEY, [...this.names].slice(-MAX_NAMES));
  }
}

export const closedFolders = new ClosedFolders();
