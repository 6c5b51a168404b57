// The time, for what counts down or up on the page: it ticks only while somebody looks.

import { createSubscriber } from "svelte/reactivity";

const TICK_MS = 1000;

export class Clock {
  readonly #subscribe = createSubscriber((update) => {
    const timer = setInterval(update, TICK_MS);
    return () => clearInterval(timer);
  });

  /** The time in ms; whoever shows it is drawn anew each second. */
  get now(): number {
    this.#subscribe();
    return Date.now();
  }
}
