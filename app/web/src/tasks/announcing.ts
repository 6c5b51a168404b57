// Tells a screen reader that calls wait for approval: of each once, and of several that come together in one sentence.

import { Lru } from "./lru.ts";

/** So many questions are remembered as told. */
const MOST = 1_000;

export class Announcer {
  readonly #say: (text: string) => void;
  readonly #told = new Lru<string, true>(MOST);
  #tools: string[] = [];

  constructor(say: (text: string) => void) {
    this.#say = say;
  }

  /** The question `id` about a call of `tool` is on the page. */
  hear(id: string, tool: string): void {
    if (this.#told.get(id)) return;
    this.#told.set(id, true);
    this.#tools.push(tool);
    if (this.#tools.length === 1) setTimeout(() => this.#speak());
  }

  #speak(): void {
    const [first = "", ...others] = this.#tools.splice(0);
    this.#say(others.length > 0 ? `${others.length + 1} tool calls need approval.` : `${first} needs approval.`);
  }
}
