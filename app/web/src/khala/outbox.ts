// The outbox: messages on their way. Each is kept until the server says yes or no, however often the page is left
// meanwhile, and is sent under one id, so that a message which did arrive is not there twice.

import type { BlobRef, RunOptions, Sent } from "./frames.ts";
import { newId } from "./ids.ts";
import type { Keys } from "./requests.ts";
import { Refusal, call, isPassing, patience, pause } from "./requests.ts";
import type { Store } from "./stores.ts";

/** How long to wait, at most, until it is looked again whether there is a network. */
const OFFLINE_MS = 30_000;

/** How a message on its way stands; `retryAt` is when (ms) the server will hear of it again, `passing` that it may then take it. */
export type OutboxState =
  | { readonly phase: "queued" }
  | { readonly phase: "sending"; readonly attempt: number }
  | { readonly phase: "sent"; readonly sent: Sent }
  | {
      readonly phase: "failed";
      readonly code: string;
      readonly message: string;
      readonly errors: readonly { path: string; message: string }[];
      readonly retryAfter: number | null;
      readonly retryAt: number | null;
      readonly passing: boolean;
    };

/** A message to be sent; `id` becomes its `messageId`. */
export interface OutboxEntry {
  readonly id: string;
  readonly threadId: string;
  readonly keys: Keys;
  readonly text: string;
  readonly attachments: readonly BlobRef[];
  readonly options: RunOptions;
  /** The message that it follows, null for none; without it, the thread's active leaf. */
  readonly parentId?: string | null;
  /** The account that wrote it, where one did. */
  readonly who?: string;
  readonly state: OutboxState;
}

export type NewEntry = Omit<OutboxEntry, "id" | "state"> & { readonly id?: string };

export interface OutboxOptions {
  store: Store<OutboxEntry>;
  /** All entries, in the order in which they were added, whenever one has changed. */
  changed: (entries: readonly OutboxEntry[]) => void;
  /** Entries could not be kept, or not be found again: they don't survive the page, and are sent all the same. */
  unkept?: (error: unknown) => void;
  send?: (entry: OutboxEntry) => Promise<Sent>;
  online?: () => boolean;
  /** How many tries in a row may fail, while there is a network. */
  tries?: number;
  /** How many entries may wait. */
  most?: number;
  /** The browser's locks, by which of several tabs only one sends an entry; null does without. */
  locks?: Pick<LockManager, "request"> | null;
}

/** More messages wait than the outbox holds. */
export class OutboxFull extends Error {
  override readonly name = "OutboxFull";
}

/** Sends messages, those of each thread one after the other. Call `wake` of `requests.ts` when the network comes back. */
export class Outbox {
  readonly #options: Required<Omit<OutboxOptions, "unkept">> & Pick<OutboxOptions, "unkept">;
  readonly #restored = new Set<string>();
  readonly #busy = new Set<string>();
  #entries: readonly OutboxEntry[] = [];
  #keeping: Promise<void> = Promise.resolve();

  constructor(options: OutboxOptions) {
    // Older browsers have no locks on plain-HTTP hosts, and Node doesn't know whether there is a network.
    const here: { readonly locks?: LockManager; readonly onLine?: boolean } = globalThis.navigator;
    const online = (): boolean => here.onLine ?? true;
    this.#options = { send: post, online, tries: 8, most: 100, locks: here.locks ?? null, ...options };
  }

  get entries(): readonly OutboxEntry[] {
    return this.#entries;
  }

  /**
   * Take up what was not sent when the page was left. What the server had refused waits for `resend`; what is not `ours`,
   * as whoever we are by now, is sent by nobody and kept no longer.
   */
  async restore(ours: (entry: OutboxEntry) => boolean = () => true): Promise<void> {
    const found = await this.#options.store.all().catch((error: unknown): OutboxEntry[] => {
      this.#options.unkept?.(error);
      return [];
    });
    for (const { id } of found.filter((entry) => !ours(entry))) this.#store((store) => store.remove(id));
    const fresh = found.filter((entry) => ours(entry) && !this.#find(entry.id)).slice(0, this.#options.most);
    for (const { id } of fresh) this.#restored.add(id);
    this.#replace([...fresh.map(again), ...this.#entries]);
    for (const threadId of new Set(fresh.map((entry) => entry.threadId))) void this.#pump(threadId);
  }

  /** Send a message, as soon as those before it in its thread are through. Its id. Throws `OutboxFull`. */
  add({ id = newId(), ...entry }: NewEntry): string {
    const waiting = this.#entries.filter(({ state }) => state.phase !== "sent");
    if (waiting.length >= this.#options.most) throw new OutboxFull(`At most ${this.#options.most} messages can wait.`);
    // Whoever had to wait here would be refused there: the one before is being answered.
    const isBehind = waiting.some((other) => other.threadId === entry.threadId && other.state.phase !== "failed");
    const options = isBehind ? { ifBusy: "queue" as const, ...entry.options } : entry.options;
    this.#replace([...this.#entries, { ...entry, id, options, state: { phase: "queued" } }]);
    this.#keep(id);
    void this.#pump(entry.threadId);
    return id;
  }

  /** Send what has failed again, under the same id. */
  resend(id: string): void {
    const entry = this.#find(id);
    if (entry?.state.phase !== "failed") return;
    this.#set(id, { phase: "queued" });
    this.#keep(id);
    void this.#pump(entry.threadId);
  }

  /** Take a message out, and what it was. One that is being sent may arrive all the same. */
  take(id: string): OutboxEntry | null {
    const entry = this.#find(id);
    this.#drop((one) => one.id === id);
    return entry ?? null;
  }

  /** Drop what has arrived in this thread, and what was reset away before it was seen. */
  settle(threadId: string, { messages, revision }: { messages: readonly { id: string }[]; revision: number | null }): void {
    const arrived = new Set(messages.map((message) => message.id));
    const isOver = ({ state }: OutboxEntry): boolean => state.phase === "sent" && revision !== null && state.sent.revision <= revision;
    this.#drop((entry) => entry.threadId === threadId && (arrived.has(entry.id) || isOver(entry)));
  }

  /** Drop all that is on its way to a thread, or all there is. */
  clear(threadId?: string): void {
    this.#drop((entry) => threadId === undefined || entry.threadId === threadId);
  }

  /** Drop what `leaves` says, here and among what other visits have kept. */
  async purge(leaves: (entry: OutboxEntry) => boolean): Promise<void> {
    this.#drop(leaves);
    const found = await this.#options.store.all().catch((error: unknown): OutboxEntry[] => {
      this.#options.unkept?.(error);
      return [];
    });
    for (const { id } of found.filter(leaves)) this.#store((store) => store.remove(id));
  }

  /** Resolves once all that was to be stored is. */
  kept(): Promise<void> {
    return this.#keeping;
  }

  async #pump(threadId: string): Promise<void> {
    if (this.#busy.has(threadId)) return;
    this.#busy.add(threadId);
    const next = (): OutboxEntry | undefined => this.#entries.find((entry) => entry.threadId === threadId && entry.state.phase === "queued");
    for (let entry = next(); entry; entry = next()) await this.#alone(entry.id);
    this.#busy.delete(threadId);
  }

  async #alone(id: string): Promise<void> {
    const deliver = (): Promise<void> => this.#deliver(id);
    const { locks } = this.#options;
    await (locks ? locks.request(`khala.send.${id}`, deliver) : deliver());
  }

  /** Try until it is sent, refused, taken back, or has failed too often. */
  async #deliver(id: string): Promise<void> {
    if (this.#restored.delete(id) && (await this.#wasSettledElsewhere(id))) return;
    for (let attempt = 0; ; ) {
      const entry = this.#find(id);
      if (!entry) return;
      if (!this.#options.online()) {
        this.#set(id, { phase: "queued" });
        await pause(OFFLINE_MS);
        continue;
      }
      this.#set(id, { phase: "sending", attempt: attempt + 1 });
      try {
        const sent = await this.#options.send(entry);
        return this.#arrived(id, sent);
      } catch (error) {
        if (!this.#options.online()) continue;
        if (!isPassing(error) || attempt + 1 >= this.#options.tries) return this.#fail(id, error);
        await pause(patience(attempt++, error));
      }
    }
  }

  /** Whether another tab has dealt with it while we waited for our turn; how it failed there, it has failed here. */
  async #wasSettledElsewhere(id: string): Promise<boolean> {
    try {
      const kept = await this.#options.store.get(id);
      if (kept?.state.phase === "failed" && !kept.state.passing) this.#set(id, kept.state);
      else if (kept) return false;
      else this.#replace(this.#entries.filter((entry) => entry.id !== id));
      return true;
    } catch (error) {
      this.#options.unkept?.(error);
      return false; // to send it twice does no harm
    }
  }

  #arrived(id: string, sent: Sent): void {
    this.#set(id, { phase: "sent", sent });
    this.#store((store) => store.remove(id));
  }

  #fail(id: string, error: unknown): void {
    const { code, errors = [], retryAfter = null } = error instanceof Refusal ? error : { code: isPassing(error) ? "unreachable" : "internal" };
    const retryAt = retryAfter === null ? null : Date.now() + 1000 * retryAfter;
    const message = error instanceof Error ? error.message : String(error);
    this.#set(id, { phase: "failed", code, message, errors, retryAfter, retryAt, passing: isPassing(error) });
    this.#keep(id);
  }

  #find(id: string): OutboxEntry | undefined {
    return this.#entries.find((entry) => entry.id === id);
  }

  #set(id: string, state: OutboxState): void {
    if (this.#find(id)) this.#replace(this.#entries.map((entry) => (entry.id === id ? { ...entry, state } : entry)));
  }

  #drop(leaves: (entry: OutboxEntry) => boolean): void {
    const gone = this.#entries.filter(leaves);
    if (gone.length === 0) return;
    this.#replace(this.#entries.filter((entry) => !gone.includes(entry)));
    for (const { id } of gone) this.#store((store) => store.remove(id));
  }

  #replace(entries: readonly OutboxEntry[]): void {
    this.#entries = entries;
    this.#options.changed(entries);
  }

  #keep(id: string): void {
    const entry = this.#find(id);
    if (entry) this.#store((store) => store.put(entry));
  }

  #store(act: (store: Store<OutboxEntry>) => Promise<void>): void {
    this.#keeping = this.#keeping.then(() => act(this.#options.store)).catch((error: unknown) => this.#options.unkept?.(error));
  }
}

/** A stored entry as it is taken up: what may succeed now is sent again. */
function again(entry: OutboxEntry): OutboxEntry {
  const isRefused = entry.state.phase === "failed" && !entry.state.passing;
  return isRefused ? entry : { ...entry, state: { phase: "queued" } };
}

/** Ask the server to take a message, once; the answer, or an error as of `call`. */
export function post({ id, threadId, keys, text, attachments, options, parentId }: OutboxEntry): Promise<Sent> {
  const body = { messageId: id, text, attachments: attachments.map(({ blobId }) => blobId), options, ...(parentId !== undefined && { parentId }) };
  return call<Sent>("POST", `/api/threads/${threadId}/send`, { body, keys });
}
