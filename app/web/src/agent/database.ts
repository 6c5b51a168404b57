// The database of the agent worker: messages for search, runs for estimates, and the last price list.

const NAME = "khala-agent";
const VERSION = 1;

export type StoreName = "messages" | "threads" | "runs" | "prices";

/** Open the database, creating it if it is new. Rejects where the browser stores nothing, as in some private windows. */
export function openDatabase(factory: IDBFactory): Promise<IDBDatabase> {
  const request = factory.open(NAME, VERSION);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("messages", { keyPath: "key" }).createIndex("threadId", "threadId");
    request.result.createObjectStore("threads", { keyPath: "id" });
    request.result.createObjectStore("runs", { keyPath: "id" });
    request.result.createObjectStore("prices");
  };
  return requested(request).then((database) => {
    // A newer version of the page in another tab may change the schema; this one continues in memory until it is reloaded.
    database.onversionchange = () => database.close();
    return database;
  });
}

export function requested<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(reasonOf(request.error));
  });
}

/** Run `work` in one transaction. Resolves once it is committed. */
export function write(database: IDBDatabase, stores: StoreName[], work: (store: (name: StoreName) => IDBObjectStore) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(stores, "readwrite");
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(reasonOf(transaction.error));
    work((name) => transaction.objectStore(name));
  });
}

/** All values of a store, or those under a key of an index. */
export function readAll(database: IDBDatabase, name: StoreName, under?: { index: string; key: IDBValidKey }): Promise<unknown[]> {
  const store = database.transaction(name).objectStore(name);
  return requested(under ? store.index(under.index).getAll(under.key) : store.getAll());
}

function reasonOf(error: DOMException | null): Error {
  return error ?? new Error("The browser's store was closed.");
}
