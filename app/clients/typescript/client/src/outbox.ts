// The outbox: a persistent queue of messages to send. Each message is stored until the server accepts or rejects it, also
// across page loads. Its id is the idempotency key: a message that is sent twice is stored once.

import type { BlobRef, NewMessage, RunOptions, SendResult } from "./frames.ts";
import { newId } from "./ids.ts";
import type { AccessKeys } from "./requests.ts";
import { ApiError, request, isTransient, retryDelayMs, retryNow, sleep } from "./requests.ts";
import type { Store } from "./stores.ts";

/** While offline, the network is checked this often at least. */
const OFFLINE_CHECK_INTERVAL_MS = 30_000;

/**
 * The state of a queued message. `retryAfter` is in seconds and `retryAt` in ms since the epoch: the earliest time of the
 * next attempt, if the server named one. `passing` says that the error is transient.
 */
export type OutboxState =
  | { readonly phase: "queued" }
  | { readonly phase: "sending"; readonly attempt: number }
  | { readonly phase: "sent"; readonly sent: SendResult }
  | {
      readonly phase: "failed";
      readonly code: string;
      readonly message: string;
      readonly errors: readonly { path: string; message: string }[];
      readonly retryAfter: number | null;
      readonly retryAt: number | null;
      readonly passing: boolean;
    };

/** A message to be sent. `id` becomes its `messageId`. It is stored as it is, so its field names are a storage format. */
export interface OutboxEntry {
  readonly id: string;
  readonly threadId: string;
  readonly keys: AccessKeys;
  readonly text: string;
  readonly attachments: readonly BlobRef[];
  readonly options: RunOptions;
  /** The id of its parent message, null for none. Without this field the parent is the thread's active leaf. */
  readonly parentId?: string | null;
  /** The name that an author without an account gives. */
  readonly authorName?: string;
  /** The id of the account that wrote it, absent for an anonymous message. */
  readonly who?: string;
  readonly state: OutboxState;
}

export type NewOutboxEntry = Omit<OutboxEntry, "id" | "state"> & { readonly id?: string };

export interface OutboxOptions {
  store: Store<OutboxEntry>;
  /** Called with all entries, in the order in which they were added, after each change. */
  onChange: (entries: readonly OutboxEntry[]) => void;
  /** Called when reading or writing the store fails. Entries are sent all the same but may not survive the page. */
  onStorageError?: (error: unknown) => void;
  send?: (entry: OutboxEntry) => Promise<SendResult>;
  isOnline?: () => boolean;
  /** The number of attempts, not counting those while offline, before a transient error fails the entry. Default 8. */
  maxAttempts?: number;
  /** The maximum number of entries that are not sent yet. Default 100. */
  maxPending?: number;
  /** The Web Locks API, with which only one of several tabs sends an entry; null for none. */
  locks?: Locks | null;
}

/** The part of the Web Locks API that is used here. */
export interface Locks {
  request(name: string, act: () => Promise<void>): Promise<unknown>;
}

/** The outbox holds the maximum number of messages. */
export class OutboxFullError extends Error {
  override readonly name = "OutboxFullError";
}

/** Sends messages, those of one thread one after the other. Call `retryNow()` when the network comes back. */
export class Outbox {
  readonly #options: Required<Omit<OutboxOptions, "onStorageError">> & Pick<OutboxOptions, "onStorageError">;
  readonly #restored = new Set<string>();
  readonly #sendingThreads = new Set<string>();
  #entries: readonly OutboxEntry[] = [];
  #isStopped = false;
  #writes: Promise<void> = Promise.resolve();

  constructor(options: OutboxOptions) {
    // Older browsers have no locks on plain-HTTP hosts, Node has no `onLine`, and Node 20 has no `navigator`.
    const platform = globalThis.navigator as { readonly locks?: Locks; readonly onLine?: boolean } | undefined;
    const isOnline = (): boolean => platform?.onLine ?? true;
    this.#options = { send: sendMessage, isOnline, maxAttempts: 8, maxPending: 100, locks: platform?.locks ?? null, ...options };
  }

  get entries(): readonly OutboxEntry[] {
    return this.#entries;
  }

  /**
   * Load the stored entries and continue sending them. Entries that the server rejected wait for `resend`. Entries for which
   * `isOurs` is false, because another account wrote them, are removed unsent.
   */
  async restore(isOurs: (entry: OutboxEntry) => boolean = () => true): Promise<void> {
    const stored = await this.#loadStored();
    for (const { id } of stored.filter((entry) => !isOurs(entry))) this.#queueWrite((store) => store.remove(id));
    const fresh = stored.filter((entry) => isOurs(entry) && !this.#find(entry.id)).slice(0, this.#options.maxPending);
    for (const { id } of fresh) this.#restored.add(id);
    this.#replace([...fresh.map(resumed), ...this.#entries]);
    for (const threadId of new Set(fresh.map((entry) => entry.threadId))) void this.#sendQueued(threadId);
  }

  /** Queue a message behind those of its thread, and return its id. Throws `OutboxFullError`. */
  add({ id = newId(), ...entry }: NewOutboxEntry): string {
    const waiting = this.#entries.filter(({ state }) => state.phase !== "sent");
    if (waiting.length >= this.#options.maxPending) throw new OutboxFullError(`At most ${this.#options.maxPending} messages can wait.`);
    // The message before it is being answered by then, so without "queue" the server would reject this one.
    const isBehind = waiting.some((other) => other.threadId === entry.threadId && other.state.phase !== "failed");
    const options = isBehind ? { ifBusy: "queue" as const, ...entry.options } : entry.options;
    this.#replace([...this.#entries, { ...entry, id, options, state: { phase: "queued" } }]);
    this.#save(id);
    void this.#sendQueued(entry.threadId);
    return id;
  }

  /** Queue a failed message again, under the same id. */
  resend(id: string): void {
    const entry = this.#find(id);
    if (entry?.state.phase !== "failed") return;
    this.#setState(id, { phase: "queued" });
    this.#save(id);
    void this.#sendQueued(entry.threadId);
  }

  /** Remove a message and return it. A message that is being sent may arrive all the same. */
  withdraw(id: string): OutboxEntry | null {
    const entry = this.#find(id);
    this.#removeWhere((candidate) => candidate.id === id);
    return entry ?? null;
  }

  /** Remove entries that have arrived in this thread, and sent entries that a reset removed before they were seen. */
  removeDelivered(threadId: string, { messages, revision }: { messages: readonly { id: string }[]; revision: number | null }): void {
    const arrived = new Set(messages.map((message) => message.id));
    const isOver = ({ state }: OutboxEntry): boolean => state.phase === "sent" && revision !== null && state.sent.revision <= revision;
    this.#removeWhere((entry) => entry.threadId === threadId && (arrived.has(entry.id) || isOver(entry)));
  }

  /** Remove all entries, or those of one thread. */
  clear(threadId?: string): void {
    this.#removeWhere((entry) => threadId === undefined || entry.threadId === threadId);
  }

  /** Remove matching entries, also those in the store that were not restored. */
  async purge(matches: (entry: OutboxEntry) => boolean): Promise<void> {
    this.#removeWhere(matches);
    const stored = await this.#loadStored();
    for (const { id } of stored.filter(matches)) this.#queueWrite((store) => store.remove(id));
  }

  /** Send nothing more. Messages stay in the store; one that is being sent may arrive. */
  stop(): void {
    this.#isStopped = true;
    retryNow();
  }

  /** Resolves once all pending writes to the store are done. */
  whenStored(): Promise<void> {
    return this.#writes;
  }

  #loadStored(): Promise<OutboxEntry[]> {
    return this.#options.store.all().catch((error: unknown): OutboxEntry[] => {
      this.#options.onStorageError?.(error);
      return [];
    });
  }

  async #sendQueued(threadId: string): Promise<void> {
    if (this.#sendingThreads.has(threadId)) return;
    this.#sendingThreads.add(threadId);
    const next = (): OutboxEntry | undefined => this.#entries.find((entry) => entry.threadId === threadId && entry.state.phase === "queued");
    for (let entry = next(); entry && !this.#isStopped; entry = next()) await this.#deliverLocked(entry.id);
    this.#sendingThreads.delete(threadId);
  }

  async #deliverLocked(id: string): Promise<void> {
    const deliver = (): Promise<void> => this.#deliver(id);
    const { locks } = this.#options;
    await (locks ? locks.request(`khala.send.${id}`, deliver) : deliver());
  }

  /** Try until the entry is sent, rejected or withdrawn, or the attempts are used up. */
  async #deliver(id: string): Promise<void> {
    if (this.#restored.delete(id) && (await this.#wasSettledElsewhere(id))) return;
    for (let attempt = 0; ; ) {
      const entry = this.#find(id);
      if (!entry || this.#isStopped) return;
      if (!this.#options.isOnline()) {
        this.#setState(id, { phase: "queued" });
        await sleep(OFFLINE_CHECK_INTERVAL_MS);
        continue;
      }
      this.#setState(id, { phase: "sending", attempt: attempt + 1 });
      try {
        const sent = await this.#options.send(entry);
        return this.#markSent(id, sent);
      } catch (error) {
        if (!this.#options.isOnline()) continue;
        if (!isTransient(error) || attempt + 1 >= this.#options.maxAttempts) return this.#markFailed(id, error);
        await sleep(retryDelayMs(attempt++, error));
      }
    }
  }

  /** Whether another tab has sent or failed the entry while this one waited for the lock. Takes over the failure. */
  async #wasSettledElsewhere(id: string): Promise<boolean> {
    try {
      const kept = await this.#options.store.get(id);
      if (kept?.state.phase === "failed" && !kept.state.passing) this.#setState(id, kept.state);
      else if (kept) return false;
      else this.#replace(this.#entries.filter((entry) => entry.id !== id));
      return true;
    } catch (error) {
      this.#options.onStorageError?.(error);
      return false; // sending it twice does no harm
    }
  }

  #markSent(id: string, sent: SendResult): void {
    this.#setState(id, { phase: "sent", sent });
    this.#queueWrite((store) => store.remove(id));
  }

  #markFailed(id: string, error: unknown): void {
    const { code, errors = [], retryAfter = null } = error instanceof ApiError ? error : { code: isTransient(error) ? "unreachable" : "internal" };
    const retryAt = retryAfter === null ? null : Date.now() + 1000 * retryAfter;
    const message = error instanceof Error ? error.message : String(error);
    this.#setState(id, { phase: "failed", code, message, errors, retryAfter, retryAt, passing: isTransient(error) });
    this.#save(id);
  }

  #find(id: string): OutboxEntry | undefined {
    return this.#entries.find((entry) => entry.id === id);
  }

  #setState(id: string, state: OutboxState): void {
    if (this.#find(id)) this.#replace(this.#entries.map((entry) => (entry.id === id ? { ...entry, state } : entry)));
  }

  #removeWhere(matches: (entry: OutboxEntry) => boolean): void {
    const removed = this.#entries.filter(matches);
    if (removed.length === 0) return;
    this.#replace(this.#entries.filter((entry) => !removed.includes(entry)));
    for (const { id } of removed) this.#queueWrite((store) => store.remove(id));
  }

  #replace(entries: readonly OutboxEntry[]): void {
    this.#entries = entries;
    this.#options.onChange(entries);
  }

  #save(id: string): void {
    const entry = this.#find(id);
    if (entry) this.#queueWrite((store) => store.put(entry));
  }

  #queueWrite(act: (store: Store<OutboxEntry>) => Promise<void>): void {
    this.#writes = this.#writes.then(() => act(this.#options.store)).catch((error: unknown) => this.#options.onStorageError?.(error));
  }
}

/** A stored entry as it is restored: queued again, unless the server rejected it. */
function resumed(entry: OutboxEntry): OutboxEntry {
  const isRefused = entry.state.phase === "failed" && !entry.state.passing;
  return isRefused ? entry : { ...entry, state: { phase: "queued" } };
}

/** Send a message once, to the page's own server. Errors as those of `request`. */
export function sendMessage(entry: OutboxEntry): Promise<SendResult> {
  return request<SendResult>("POST", `/api/threads/${entry.threadId}/send`, { body: sendBody(entry), keys: entry.keys });
}

/** The body of the request that sends a message. */
export function sendBody({ id, text, attachments, options, parentId, authorName }: OutboxEntry): NewMessage {
  return { messageId: id, text, attachments: attachments.map(({ blobId }) => blobId), options, ...(parentId !== undefined && { parentId }), ...(authorName && { authorName }) };
}
