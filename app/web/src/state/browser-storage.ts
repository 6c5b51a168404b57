// A storage of small texts that always works: where the browser refuses one, this page remembers by itself until it is closed.

/** The part of `Storage` that is used here. */
export type StorageLike = Pick<Storage, "getItem" | "setItem" | "removeItem">;

export class BrowserStorage {
  readonly #open: () => StorageLike;
  readonly #memory = new Map<string, string>();

  /** `open()` gives the browser's storage, or throws where there is none for us. */
  constructor(open: () => StorageLike) {
    this.#open = open;
  }

  get(name: string): string | null {
    try {
      return this.#open().getItem(name) ?? this.#memory.get(name) ?? null;
    } catch {
      return this.#memory.get(name) ?? null;
    }
  }

  /** Keep a text under this name; null keeps nothing there. */
  set(name: string, value: string | null): void {
    this.#memory.delete(name);
    try {
      if (value === null) this.#open().removeItem(name);
      else this.#open().setItem(name, value);
    } catch {
      if (value !== null) this.#memory.set(name, value);
    }
  }

  names(): string[] {
    try {
      return [...Object.keys(this.#open()), ...this.#memory.keys()];
    } catch {
      return [...this.#memory.keys()];
    }
  }

  /** What was kept there as JSON, or null: for what is none, too. */
  read(name: string): unknown {
    try {
      return JSON.parse(this.get(name) ?? "null");
    } catch {
      return null;
    }
  }

  write(name: string, value: unknown): void {
    this.set(name, JSON.stringify(value));
  }
}
