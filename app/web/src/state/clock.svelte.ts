// The current time for countdowns and timers on the page. It ticks only while it is shown.

import { createSubscriber } from "svelte/reactivity";

const TICK_MS = 1000;

export class Clock {
  readonly #subscribe = createSubscriber((update) => {
    const timer = setInterval(update, TICK_MS);
    return () => clearInterval(timer);
  });

  /** The time in ms since the epoch. It updates whatever shows it once a second. */
  get now(): number {
    this.#subscribe();
    return Date.now();
  }
}
