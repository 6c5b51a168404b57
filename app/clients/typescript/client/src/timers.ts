// Named timers. Setting a timer replaces the pending timer of the same name.

export class Timers<Name extends string> {
  readonly #pending = new Map<Name, ReturnType<typeof setTimeout>>();

  /** Call `act` after `milliseconds`, unless the timer is cancelled or set again before. */
  after(name: Name, milliseconds: number, act: () => void): void {
    this.cancel(name);
    this.#pending.set(
      name,
      setTimeout(() => {
        this.#pending.delete(name);
        act();
      }, milliseconds),
    );
  }

  cancel(name: Name): void {
    clearTimeout(this.#pending.get(name));
    this.#pending.delete(name);
  }

  clear(): void {
    for (const timer of this.#pending.values()) clearTimeout(timer);
    this.#pending.clear();
  }
}
