// Tells a screen reader that calls wait for approval: of each once, and of several that come together in one sentence.

import { LruCache } from "./lru-cache.ts";

/** So many questions are remembered as told. */
const MAX_REMEMBERED_REQUESTS = 1_000;

export class ApprovalAnnouncer {
  readonly #say: (text: string) => void;
  readonly #announced = new LruCache<string, true>(MAX_REMEMBERED_REQUESTS);
  #tools: string[] = [];

  constructor(say: (text: string) => void) {
    this.#say = say;
  }

  /** The question `id` about a call of `tool` is on the page. */
  announce(id: string, tool: string): void {
    if (this.#announced.get(id)) return;
    this.#announced.set(id, true);
    this.#tools.push(tool);
    if (this.#tools.length === 1) setTimeout(() => this.#speak());
  }

  #speak(): void {
    const [first = "", ...others] = this.#tools.splice(0);
    this.#say(others.length > 0 ? `${others.length + 1} tool calls need approval.` : `${first} needs approval.`);
  }
}
