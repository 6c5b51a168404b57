// Threads as they were last seen, in this browser's IndexedDB, so that they can be read while the server is out of reach.
//
// A store that fails costs only that: it is asked quietly, and what can't be kept is not kept.

import type { ThreadState } from "../khala/state.ts";

const NAME = "khala-threads";
const STORE = "threads";
const MAX_THREADS = 20;
const MAX_SNAPSHOT_CHARACTERS = 2 * 1024 * 1024;
/** A page of messages that is worth keeping by itself. */
const MIN_MESSAGES = 20;

type Row = { threadId: string; who: string | null; usedAt: number; text: string };

export class SnapshotStore {
  #database: Promise<IDBDatabase | null> | null = null;
  readonly #factory: IDBFactory | undefined;

  constructor(factory: IDBFactory | undefined = globalThis.indexedDB) {
    this.#factory = factory;
  }

  /** The thread as this account, or nobody, has last seen it here; else null. */
  async load(threadId: string, who: string | null): Promise<ThreadState | null> {
    const row = await this.#do<Row | undefined>("readonly", (store) => store.get(threadId) as IDBRequest<Row | undefined>);
    if (row?.who !== who) return null;
    return JSON.parse(row.text) as ThreadState;
  }

  /** Keep it in place of what was kept of it; of a long one only the end. The threads used longest ago go where there are too many. */
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

  /** The result of one request, or undefined where there is no store, or it fails. */
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
        resolve(undefined); // the database is closing, or was deleted under us
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
        // A newer version, or a deletion, in another tab must not wait for this one.
        request.result.onversionchange = () => request.result.close();
        resolve(request.result);
      };
      request.onerror = () => reject(request.error ?? new Error("The browser's database does not open."));
    }).catch((error: unknown) => {
      // As in some private windows. It is not tried again, so this is said once.
      console.info("khala", "Threads can't be kept in this browser.", error);
      return null;
    });
  }
}

/** The state as JSON, without its oldest messages where it would be too large; null if even its end is. */
export function serializeWithin(state: ThreadState, most = MAX_SNAPSHOT_CHARACTERS): string | null {
  let kept = state;
  for (;;) {
    const text = JSON.stringify(kept);
    if (text.length <= most) return text;
    const half = Math.ceil(kept.messages.length / 2);
    if (half < MIN_MESSAGES / 2) return null;
    kept = { ...kept, messages: kept.messages.slice(-half), hasMore: true };
  }
}
