// A key-value storage of short texts. Falls back to memory, for as long as the page lives, where the browser refuses access.

/** The part of `Storage` that is used here. */
export type StorageLike = Pick<Storage, "getItem" | "setItem" | "removeItem">;

export class BrowserStorage {
  readonly #open: () => StorageLike;
  readonly #memory = new Map<string, string>();

  /** `open` returns the browser's storage, or throws if access is refused. */
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

  /** Store a text under this name; null deletes it. */
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

  /** The JSON value under this name; null if there is none or it is invalid. */
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
