// The token counts of several active answers.

import { createCounter, type TokenCount, type TokenCounter } from "./token-counter.ts";

/** Beyond this number of runs the least recently counted one is dropped. */
export const MAX_COUNTED_RUNS = 64;

/** A count, or null if the text before `from` is unknown, so that the whole text must be sent again. */
export type IncrementalCount = TokenCount | null;

export class TokenCounts {
  readonly #counterFor: (model: string) => Promise<TokenCounter>;
  readonly #counters = new Map<string, { model: string; counter: TokenCounter }>();
  #last: Promise<unknown> = Promise.resolve();

  constructor(make: (model: string) => Promise<TokenCounter> = createCounter) {
    this.#counterFor = make;
  }

  /** Count the text that follows the first `from` UTF-16 units of a run's answer. Calls are handled in order. */
  count(runId: string, from: number, text: string, model: string): Promise<IncrementalCount> {
    const counted = this.#last.then(() => this.#count(runId, from, text, model));
    this.#last = counted.catch(() => null); // its caller handles the error
    return counted;
  }

  clear(): void {
    this.#counters.clear();
  }

  async #count(runId: string, from: number, text: string, model: string): Promise<IncrementalCount> {
    const known = this.#counters.get(runId);
    const fits = known?.model === model && known.counter.characters === from;
    if (!fits && from > 0) return null;
    const counter = fits ? known.counter : await this.#counterFor(model);
    this.#counters.delete(runId);
    this.#counters.set(runId, { model, counter });
    const [oldest] = this.#counters.keys();
    if (this.#counters.size > MAX_COUNTED_RUNS && oldest !== undefined) this.#counters.delete(oldest);
    return counter.append(text);
  }
}
