// The messages that can be searched: kept in this browser, and in memory while the worker lives.

import { readAll, write } from "../database.ts";
import { embed, MAX_TEXT_CHARACTERS, pack, unpack } from "../embed.ts";
import { MessageIndex, type IndexEntry } from "./message-index.ts";

/** A thread as far as it is indexed; `revision` is that of the thread when its messages were last read. */
export type IndexedThread = { id: string; title: string; revision: number };
/** A message's text; `at` is its time in ms. */
export type IndexedMessage = { id: string; text: string; at: number };
/** The ids of a thread's newest messages, on all branches and without a gap; of all that it has if `isWhole`. */
export type Extent = { ids: readonly string[]; isWhole: boolean };
/**
 * `ranges` are [start, end) of matching words in `snippet`. Where a title was found, `messageId` is the thread's newest
 * message, and `snippet` is the title.
 */
export type SearchResult = {
  threadId: string;
  messageId: string;
  title: string;
  snippet: string;
  ranges: [number, number][];
  at: number;
  score: number;
  by: "words" | "likeness";
};
export type ArchiveLimits = { messages: number; bytes: number };

/** Beyond these the oldest messages are forgotten. */
export const DEFAULT_LIMITS: ArchiveLimits = { messages: 50_000, bytes: 50 * 2 ** 20 };
/** What is dropped at once when a bound is reached, so that this is not each message's work. */
const TRIM_SHARE = 0.05;
/** How many messages are loaded before somebody else has their turn. */
const LOAD_BATCH_SIZE = 100;

type StoredEntry = IndexEntry & { vector: Int8Array };

export class MessageArchive {
  readonly #index: MessageIndex;
  readonly #database: IDBDatabase | null;
  readonly #limits: ArchiveLimits;
  readonly #threads = new Map<string, IndexedThread>();
  /** The keys of a thread's entries. */
  readonly #members = new Map<string, Set<string>>();
  #bytes = 0;

  constructor(index: MessageIndex, database: IDBDatabase | null, bounds: ArchiveLimits = DEFAULT_LIMITS) {
    this.#index = index;
    this.#database = database;
    this.#limits = bounds;
  }

  get size(): number {
    return this.#index.size;
  }

  /** The revision up to which a thread is indexed, or null. */
  revisionOf(threadId: string): number | null {
    return this.#threads.get(threadId)?.revision ?? null;
  }

  /** Takes up all that was kept, bit by bit, so that others have their turn; nothing else may be asked until it is done. */
  async load(): Promise<void> {
    if (!this.#database) return;
    const kept = (await readAll(this.#database, "messages")) as StoredEntry[];
    for (const thread of (await readAll(this.#database, "threads")) as IndexedThread[]) this.#threads.set(thread.id, thread);
    for (const [count, { vector, ...entry }] of kept.entries()) {
      this.#addToMemory(entry, unpack(vector));
      if (count % LOAD_BATCH_SIZE === 0) await new Promise((resolve) => setTimeout(resolve));
    }
    // Each tab drops the oldest of what it knows, so several may have left more than they should.
    const dropped = this.#dropOldest();
    if (dropped.length > 0) await this.#write((messagesStore) => dropped.forEach((key) => messagesStore.delete(key)));
  }

  /** Takes up anew what was kept of a thread, which another tab has changed. */
  async reload(threadId: string): Promise<void> {
    if (!this.#database) return;
    const kept = (await readAll(this.#database, "messages", { index: "threadId", key: threadId })) as StoredEntry[];
    const thread = ((await readAll(this.#database, "threads")) as IndexedThread[]).find(({ id }) => id === threadId);
    this.dropFromMemory(threadId);
    if (thread) this.#threads.set(threadId, thread);
    for (const { vector, ...entry } of kept) this.#addToMemory(entry, unpack(vector));
  }

  /**
   * Adds messages of a thread, or their new texts, and its title. Messages that are not given stay, unless the extent
   * shows that the thread has them no more. An older revision than the one that is indexed changes nothing. How many
   * texts were new is told.
   */
  async add(thread: IndexedThread, messages: readonly IndexedMessage[], extent?: Extent): Promise<number> {
    if (thread.revision < (this.revisionOf(thread.id) ?? 0)) return 0;
    const changed = this.#entriesOf(thread, messages).filter(({ key, text }) => (this.#index.get(key)?.text ?? "") !== text);
    const entries = changed.filter(({ text }) => text !== "");
    const emptied = changed.filter(({ text }) => text === "").map(({ key }) => key);
    const kept = entries.map((entry): StoredEntry => ({ ...entry, vector: pack(embed(entry.text)) }));
    this.#threads.set(thread.id, thread);
    for (const { vector, ...entry } of kept) this.#addToMemory(entry, unpack(vector));
    for (const key of emptied) this.#drop(key);
    const gone = extent ? this.#deletedKeys(thread.id, extent) : [];
    for (const key of gone) this.#drop(key);
    const dropped = [...emptied, ...gone, ...this.#dropOldest()];
    await this.#write((messagesStore, threadsStore) => {
      threadsStore.put(thread);
      for (const entry of kept) messagesStore.put(entry);
      for (const key of dropped) messagesStore.delete(key);
    });
    return entries.length;
  }

  async forget(threadId: string): Promise<void> {
    this.dropFromMemory(threadId);
    await this.#write((messagesStore, threadsStore) => {
      threadsStore.delete(threadId);
      // Not only what is held: another tab may have kept more.
      const keys = messagesStore.index("threadId").getAllKeys(threadId);
      keys.onsuccess = () => {
        for (const key of keys.result) messagesStore.delete(key);
      };
    });
  }

  async clear(): Promise<void> {
    this.clearMemory();
    await this.#write((messagesStore, threadsStore) => {
      messagesStore.clear();
      threadsStore.clear();
    });
  }

  /** Forgets a thread in memory alone. */
  dropFromMemory(threadId: string): void {
    for (const key of this.#members.get(threadId) ?? []) this.#drop(key);
    this.#members.delete(threadId);
    this.#threads.delete(threadId);
  }

  clearMemory(): void {
    this.#index.clear();
    this.#threads.clear();
    this.#members.clear();
    this.#bytes = 0;
  }

  search(query: string, k: number): SearchResult[] {
    const seen = new Set<string>();
    // A title and the message that stands for it may both be found.
    return this.#index.search(query, k + 1).flatMap(({ threadId, messageId, snippet, ranges, at, score, by }) => {
      const goal = messageId ?? this.#newestMessageId(threadId);
      if (goal === null || seen.has(goal) || seen.size === k) return [];
      seen.add(goal);
      return [{ threadId, messageId: goal, title: this.#threads.get(threadId)?.title ?? "", snippet, ranges, at, score, by }];
    });
  }

  /** With the title, which is as old as the newest message that was ever given with it. */
  #entriesOf({ id, title }: IndexedThread, messages: readonly IndexedMessage[]): IndexEntry[] {
    const at = messages.reduce((newest, message) => Math.max(newest, message.at), this.#index.get(id)?.at ?? 0);
    const entries = messages.map((message): IndexEntry => ({ key: message.id, threadId: id, messageId: message.id, text: message.text, at: message.at }));
    return [...entries, { key: id, threadId: id, messageId: null, text: title, at }].map((entry) => ({ ...entry, text: entry.text.trim().slice(0, MAX_TEXT_CHARACTERS) }));
  }

  /** The keys of messages that were deleted: they are not among those that there are, and not older than them either. */
  #deletedKeys(threadId: string, { ids, isWhole }: Extent): string[] {
    const there = new Set(ids);
    const entries = [...(this.#members.get(threadId) ?? [])].flatMap((key) => this.#index.get(key) ?? []).filter(({ messageId }) => messageId !== null);
    const from = isWhole ? -Infinity : entries.reduce((oldest, { key, at }) => (there.has(key) ? Math.min(oldest, at) : oldest), Infinity);
    return entries.flatMap(({ key, at }) => (at > from && !there.has(key) ? [key] : []));
  }

  #newestMessageId(threadId: string): string | null {
    let newest: IndexEntry | null = null;
    for (const key of this.#members.get(threadId) ?? []) {
      const entry = this.#index.get(key);
      if (entry && entry.messageId !== null && entry.at >= (newest?.at ?? -Infinity)) newest = entry;
    }
    return newest?.messageId ?? null;
  }

  #addToMemory(entry: IndexEntry, vector: Float32Array): void {
    this.#bytes += bytesOf(entry) - bytesOf(this.#index.get(entry.key));
    this.#index.put(entry, vector);
    const members = this.#members.get(entry.threadId) ?? new Set();
    this.#members.set(entry.threadId, members.add(entry.key));
  }

  #drop(key: string): void {
    const entry = this.#index.get(key);
    this.#bytes -= bytesOf(entry);
    this.#index.remove(key);
    if (entry) this.#members.get(entry.threadId)?.delete(key);
  }

  #dropOldest(): string[] {
    if (this.size <= this.#limits.messages && this.#bytes <= this.#limits.bytes) return [];
    const entries = [...this.#members.values()].flatMap((keys) => [...keys].flatMap((key) => this.#index.get(key) ?? []));
    const dropped: string[] = [];
    for (const { key } of entries.sort((a, b) => a.at - b.at)) {
      if (this.size <= this.#limits.messages * (1 - TRIM_SHARE) && this.#bytes <= this.#limits.bytes * (1 - TRIM_SHARE)) break;
      this.#drop(key);
      dropped.push(key);
    }
    return dropped;
  }

  async #write(work: (messages: IDBObjectStore, threads: IDBObjectStore) => void): Promise<void> {
    if (this.#database) await write(this.#database, ["messages", "threads"], (store) => work(store("messages"), store("threads")));
  }
}

/** Two for each UTF-16 unit, and the packed vector. */
function bytesOf(entry: IndexEntry | null): number {
  return entry ? 2 * entry.text.length + 384 : 0;
}
