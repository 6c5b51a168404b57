// Whether the bare key `?` opens the help: who speaks to the computer, or presses keys by accident, can switch it off.

import { BrowserStorage } from "../state/browser-storage.ts";

const NAME = "khala.helpKey";
const kept = new BrowserStorage(() => localStorage);

class HelpKey {
  #isOn = $state(kept.get(NAME) !== "off");

  get isOn(): boolean {
    return this.#isOn;
  }

  set isOn(isOn: boolean) {
    this.#isOn = isOn;
    kept.set(NAME, isOn ? null : "off");
  }
}

export const helpKey = new HelpKey();
