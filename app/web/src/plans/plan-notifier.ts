// Notifications of the browser about plans that need somebody: each need once, and only while nobody looks at the page.

import type { PlanNeed } from "./plan-needs.ts";

export class PlanNotifier {
  readonly #show: (need: PlanNeed) => void;
  #chat: string | null = null;
  #known = new Set<string>();

  constructor(show: (need: PlanNeed) => void) {
    this.#show = show;
  }

  /** The needs of the open chat's plans are these now. Those that it had when it was opened are not shown. */
  update(chat: string, needs: readonly PlanNeed[], isWanted: boolean): void {
    const fresh = chat === this.#chat ? needs.filter(({ key }) => !this.#known.has(key)) : [];
    this.#chat = chat;
    this.#known = new Set(needs.map(({ key }) => key));
    if (isWanted) fresh.forEach(this.#show);
  }
}
