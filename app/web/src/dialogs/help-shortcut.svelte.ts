// Whether the key `?` alone opens the help. It can be switched off, for speech input and accidental presses (WCAG 2.1.4).

import { BrowserStorage } from "../browser/browser-storage.ts";

const STORAGE_KEY = "khala.helpKey";
const kept = new BrowserStorage(() => localStorage);

class HelpShortcut {
  #isOn = $state(kept.get(STORAGE_KEY) !== "off");

  get isOn(): boolean {
    return this.#isOn;
  }

  set isOn(isOn: boolean) {
    this.#isOn = isOn;
    kept.set(STORAGE_KEY, isOn ? null : "off");
  }
}

export const helpShortcut = new HelpShortcut();
