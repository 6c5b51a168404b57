// Whether the list of chats is hidden in a wide window, kept in this browser. In a narrow one it is a sheet.

import { BrowserStorage } from "../browser/browser-storage.ts";

const STORAGE_KEY = "khala.list";
const kept = new BrowserStorage(() => localStorage);

class ListVisibility {
  #isHidden = $state(kept.get(STORAGE_KEY) === "hidden");

  get isHidden(): boolean {
    return this.#isHidden;
  }

  set isHidden(isHidden: boolean) {
    this.#isHidden = isHidden;
    kept.set(STORAGE_KEY, isHidden ? "hidden" : null);
  }
}

export const listVisibility = new ListVisibility();
