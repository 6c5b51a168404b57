// Where things are kept between visits: in IndexedDB, or in memory where there is none.

/** Keeps values by their `id`. All of it may fail where the browser gives no room. */
export interface Store<Value extends { readonly id: string }> {
  /** All values, in the order of their ids; ids of version 7 are in the order in which they were made. */
  all(): Promise<Value[]>;
  get(id: string): Promise<Value | undefined>;
  put(value: Value): Promise<void>;
  remove(id: string): Promise<void>;
}

/** A store that lasts as long as the page. */
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

/** A store in a database of its own, called `name`; its values are cloned, so they hold nothing but what can be. */
export class IndexedStore<Value extends { readonly id: string }> implements Store<Value> {
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
      // What was asked for holds only once its transaction is through.
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
    // What failed may succeed the next time.
    opened.catch(() => (this.#database = null));
    return opened;
  }

  #leave(database: IDBDatabase): void {
    database.close();
    this.#database = null;
  }
}
