// A value that changes, and whose readers are told so.

/** Ends a subscription. Calling it again does nothing. */
export type StopListening = () => void;

/** A value that others can read and observe. The value is immutable: each change is a new one. */
export interface Observable<Value> {
  get(): Value;
  /** Calls `listener` after each change. */
  subscribe(listener: () => void): StopListening;
}

/** An observable that is followed as long as anybody listens, and some time after that. */
export class LiveValue<Value> implements Observable<Value> {
  #value: Value;
  readonly #listeners = new Set<{ call: () => void }>();
  readonly #start: () => void;
  readonly #stop: () => void;
  readonly #lingerMs: number;
  #lingering: ReturnType<typeof setTimeout> | null = null;
  #isStarted = false;

  /** `start` is called with the first listener, who gets its error, and `stop` when there has been none for `lingerMs` milliseconds. */
  constructor(value: Value, start: () => void, stop: () => void, lingerMs: number) {
    this.#value = value;
    this.#start = start;
    this.#stop = stop;
    this.#lingerMs = lingerMs;
  }

  get(): Value {
    return this.#value;
  }

  set(value: Value): void {
    if (value === this.#value) return;
    this.#value = value;
    for (const { call } of [...this.#listeners]) call();
  }

  subscribe(listener: () => void): StopListening {
    const own = { call: listener };
    this.#listeners.add(own);
    if (this.#lingering !== null) clearTimeout(this.#lingering);
    this.#lingering = null;
    if (!this.#isStarted) {
      try {
        this.#isStarted = true;
        this.#start();
      } catch (error) {
        this.#isStarted = false;
        this.#listeners.delete(own);
        throw error;
      }
    }
    return () => {
      if (this.#listeners.delete(own) && this.#listeners.size === 0) this.#stopLater();
    };
  }

  #stopLater(): void {
    if (this.#lingerMs === 0) return this.stop();
    this.#lingering = setTimeout(() => this.stop(), this.#lingerMs);
    (this.#lingering as { unref?: () => void }).unref?.(); // Node may end meanwhile
  }

  /** Stop now. The next listener starts it again. */
  stop(): void {
    if (this.#lingering !== null) clearTimeout(this.#lingering);
    this.#lingering = null;
    if (!this.#isStarted) return;
    this.#isStarted = false;
    this.#stop();
  }
}

/** The values of an observable, from the current one on. A slow reader skips values. Ends when `signal` is aborted. */
export async function* valuesOf<Value>(observable: Observable<Value>, signal?: AbortSignal): AsyncGenerator<Value, void> {
  let hasChanged = true;
  let wake = (): void => undefined;
  const tell = (): void => {
    hasChanged = true;
    wake();
  };
  const unsubscribe = observable.subscribe(tell);
  signal?.addEventListener("abort", tell);
  try {
    while (!signal?.aborted) {
      if (!hasChanged) await new Promise<void>((resolve) => (wake = resolve));
      if (signal?.aborted) return;
      hasChanged = false;
      yield observable.get();
    }
  } finally {
    signal?.removeEventListener("abort", tell);
    unsubscribe();
  }
}
