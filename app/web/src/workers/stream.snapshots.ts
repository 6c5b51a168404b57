// The newest snapshots of threads in IndexedDB, so that they can be read while the server is out of reach.
//
// The store is a cache: errors are ignored, and a snapshot that can't be written is not stored.

import type { ThreadState } from "@khala/client";

const NAME = "khala-threads";
const STORE = "threads";
const MAX_THREADS = 20;
const MAX_SNAPSHOT_CHARACTERS = 2 * 1024 * 1024;
/** A page of messages; a snapshot with fewer than half of it is not stored. */
const MIN_MESSAGES = 20;

type Row = { threadId: string; who: string | null; usedAt: number; text: string };

export class SnapshotStore {
  #database: Promise<IDBDatabase | null> | null = null;
  readonly #factory: IDBFactory | undefined;

  constructor(factory: IDBFactory | undefined = globalThis.indexedDB) {
    this.#factory = factory;
  }

  /** The snapshot of a thread as this account, or the anonymous user, last saw it; null if there is none. */
  async load(threadId: string, who: string | null): Promise<ThreadState | null> {
    const row = await this.#do<Row | undefined>("readonly", (store) => store.get(threadId) as IDBRequest<Row | undefined>);
    if (row?.who !== who) return null;
    const state = JSON.parse(row.text) as ThreadState | Omit<ThreadState, "plans">;
    return "plans" in state ? state : null; // stored before threads had plans
  }

  /** Store a snapshot in place of the previous one, without the oldest messages of a long thread. Evicts the least recently used threads. */
  async save(threadId: string, who: string | null, state: ThreadState, usedAt: number): Promise<void> {
    const text = serializeWithin(state);
    if (text === null) return this.forget(threadId);
    await this.#do("readwrite", (store) => store.put({ threadId, who, usedAt, text } satisfies Row));
    const rows = (await this.#do<Row[]>("readonly", (store) => store.getAll() as IDBRequest<Row[]>)) ?? [];
    const old = rows.sort((one, other) => other.usedAt - one.usedAt).slice(MAX_THREADS);
    for (const row of old) await this.forget(row.threadId);
  }

  async forget(threadId: string): Promise<void> {
    await this.#do("readwrite", (store) => store.delete(threadId));
  }

  async clear(): Promise<void> {
    await this.#do("readwrite", (store) => store.clear());
  }

  /** The result of one request; undefined if there is no database or the request fails. */
  async #do<Result>(mode: IDBTransactionMode, ask: (store: IDBObjectStore) => IDBRequest<Result>): Promise<Result | undefined>;
  async #do(mode: IDBTransactionMode, ask: (store: IDBObjectStore) => IDBRequest): Promise<unknown> {
    this.#database ??= this.#open();
    const database = await this.#database;
    if (!database) return undefined;
    return new Promise((resolve) => {
      try {
        const transaction = database.transaction(STORE, mode);
        const request = ask(transaction.objectStore(STORE));
        transaction.oncomplete = () => resolve(request.result);
        transaction.onerror = transaction.onabort = () => resolve(undefined);
      } catch {
        resolve(undefined); // the database is closing or was deleted
      }
    });
  }

  #open(): Promise<IDBDatabase | null> {
    const factory = this.#factory;
    if (!factory) return Promise.resolve(null);
    return new Promise<IDBDatabase>((resolve, reject) => {
      const request = factory.open(NAME, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "threadId" });
      request.onsuccess = () => {
        // Don't block a newer version or a deletion in another tab.
        request.result.onversionchange = () => request.result.close();
        resolve(request.result);
      };
      request.onerror = () => reject(request.error ?? new Error("The browser's database does not open."));
    }).catch((error: unknown) => {
      // For example in private windows. It is logged once, because opening is not retried.
      console.info("khala", "Threads can't be kept in this browser.", error);
      return null;
    });
  }
}

/** The state as JSON, without its oldest messages where it would be too large; null if even the newest are too large. */
export function serializeWithin(state: ThreadState, maxCharacters = MAX_SNAPSHOT_CHARACTERS): string | null {
  let kept = state;
  for (;;) {
    const text = JSON.stringify(kept);
    if (text.length <= maxCharacters) return text;
    const half = Math.ceil(kept.messages.length / 2);
    if (half < MIN_MESSAGES / 2) return null;
    kept = { ...kept, messages: kept.messages.slice(-half), hasMore: true };
  }
}
