// A cache that keeps what was used last, within bounds.

/** At most `most` values, which together weigh at most `heaviest`; what was used longest ago goes first. */
export class LruCache<Key, Value> {
  readonly #maxEntries: number;
  readonly #maxWeight: number;
  readonly #entries = new Map<Key, { value: Value; weight: number }>();
  #weight = 0;

  constructor(most: number, heaviest = Infinity) {
    this.#maxEntries = most;
    this.#maxWeight = heaviest;
  }

  get size(): number {
    return this.#entries.size;
  }

  /** The value, which is now the one that was used last. */
  get(key: Key): Value | undefined {
    const entry = this.#entries.get(key);
    if (!entry) return undefined;
    this.#entries.delete(key);
    this.#entries.set(key, entry);
    return entry.value;
  }

  /** Keep a value; one that is too heavy by itself is not kept. */
  set(key: Key, value: Value, weight = 1): void {
    this.delete(key);
    if (weight > this.#maxWeight) return;
    this.#entries.set(key, { value, weight });
    this.#weight += weight;
    for (const oldest of this.#entries.keys()) {
      if (this.#entries.size <= this.#maxEntries && this.#weight <= this.#maxWeight) return;
      this.delete(oldest);
    }
  }

  delete(key: Key): void {
    const entry = this.#entries.get(key);
    if (!entry) return;
    this.#entries.delete(key);
    this.#weight -= entry.weight;
  }

  clear(): void {
    this.#entries.clear();
    this.#weight = 0;
  }
}
