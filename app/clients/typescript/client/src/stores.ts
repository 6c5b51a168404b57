// Key-value stores that outlive the page: IndexedDB, or memory where IndexedDB is missing.

/** Stores values by their `id`. Every method may reject, for example when the browser's quota is used up. */
export interface Store<Value extends { readonly id: string }> {
  /** All values in the order of their ids. UUIDs of version 7 are in the order of their creation. */
  all(): Promise<Value[]>;
  get(id: string): Promise<Value | undefined>;
  put(value: Value): Promise<void>;
  remove(id: string): Promise<void>;
}

/** A store in memory, which lasts as long as the page. */
export class MemoryStore<Value extends { readonly id: string }> implements Store<Value> {
  readonly #values = new Map<string, Value>();

  all(): Promise<Value[]> {
    return Promise.resolve([...this.#values.values()].sort((one, other) => (one.id < other.id ? -1 : 1)));
  }

  get(id: string): Promise<Value | undefined> {
    return Promise.resolve(this.#values.get(id));
  }

  put(value: Value): Promise<void> {
    this.#values.set(value.id, value);
    return Promise.resolve();
  }

  remove(id: string): Promise<void> {
    this.#values.delete(id);
    return Promise.resolve();
  }
}

/** A store in an IndexedDB database of its own, called `name`. Values must be structured-cloneable. */
export class IndexedDbStore<Value extends { readonly id: string }> implements Store<Value> {
  readonly #name: string;
  #database: Promise<IDBDatabase> | null = null;

  constructor(name: string) {
    this.#name = name;
  }

  async all(): Promise<Value[]> {
    return (await this.#do("readonly", (values) => values.getAll())) as Value[];
  }

  async get(id: string): Promise<Value | undefined> {
    return (await this.#do("readonly", (values) => values.get(id))) as Value | undefined;
  }

  async put(value: Value): Promise<void> {
    await this.#do("readwrite", (values) => values.put(value));
  }

  async remove(id: string): Promise<void> {
    await this.#do("readwrite", (values) => values.delete(id));
  }

  async #do(mode: IDBTransactionMode, act: (values: IDBObjectStore) => IDBRequest): Promise<unknown> {
    const database = await (this.#database ??= this.#open());
    return new Promise((resolve, reject) => {
      const transaction = database.transaction("values", mode);
      const request = act(transaction.objectStore("values"));
      // A write is durable only once its transaction is complete.
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = () => reject(transaction.error ?? new Error("The browser gave up on storing."));
    });
  }

  #open(): Promise<IDBDatabase> {
    const opened = new Promise<IDBDatabase>((resolve, reject) => {
      const request = indexedDB.open(this.#name, 1);
      request.onupgradeneeded = () => request.result.createObjectStore("values", { keyPath: "id" });
      request.onerror = () => reject(request.error ?? new Error("The browser's database does not open."));
      request.onsuccess = () => {
        // A newer version, or a deletion, in another tab must not wait for this one.
        request.result.onversionchange = () => this.#leave(request.result);
        request.result.onclose = () => (this.#database = null);
        resolve(request.result);
      };
    });
    // The next call tries to open it again.
    opened.catch(() => (this.#database = null));
    return opened;
  }

  #leave(database: IDBDatabase): void {
    database.close();
    this.#database = null;
  }
}

/** A store for one person: in IndexedDB if that exists and the person is known, otherwise in memory. */
export function defaultStore<Value extends { readonly id: string }>(name: string, person: string | undefined): Store<Value> {
  if (person === undefined || !("indexedDB" in globalThis)) return new MemoryStore();
  return new IndexedDbStore(`${name} ${hashOf(person)}`);
}

/** A short name for a text (FNV-1a, twice 32 bits). It keeps an anonymous key out of the name of a database. */
function hashOf(text: string): string {
  const half = (seed: number): string => {
    let hash = seed;
    for (const character of new TextEncoder().encode(text)) hash = Math.imul(hash ^ character, 0x01000193);
    return (hash >>> 0).toString(16).padStart(8, "0");
  };
  return half(0x811c9dc5) + half(0x5bd1e995);
}
