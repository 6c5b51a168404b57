// The archive of searchable messages: in the database, and in memory while the worker lives.

import { readAll, write } from "../database.ts";
import { embed, MAX_TEXT_CHARACTERS, pack, unpack } from "../embed.ts";
import { MessageIndex, type IndexEntry } from "./message-index.ts";

/** An indexed thread. `revision` is its revision when its messages were last read. */
export type IndexedThread = { id: string; title: string; revision: number };
/** The text of a message. `at` is its time in ms since the epoch. */
export type IndexedMessage = { id: string; text: string; at: number };
/** The ids of a thread's newest messages on all branches, without gaps; of all its messages if `isWhole`. */
export type Extent = { ids: readonly string[]; isWhole: boolean };
/**
 * A search result. `ranges` are [start, end) of matching words in `snippet`. If the title matches, `messageId` is the thread's
 * newest message and `snippet` is the title.
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

/** Beyond these limits the oldest messages are deleted. */
export const DEFAULT_LIMITS: ArchiveLimits = { messages: 50_000, bytes: 50 * 2 ** 20 };
/** The share that is deleted at once when a limit is reached, so that not every message triggers a deletion. */
const TRIM_SHARE = 0.05;
/** The number of messages that are loaded before other tasks may run. */
const LOAD_BATCH_SIZE = 100;

type StoredEntry = IndexEntry & { vector: Int8Array };

export class MessageArchive {
  readonly #index: MessageIndex;
  readonly #database: IDBDatabase | null;
  readonly #limits: ArchiveLimits;
  readonly #threads = new Map<string, IndexedThread>();
  /** The keys of each thread's entries. */
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

  /** Load the database into memory, in batches so that other tasks may run. Must complete before any other call. */
  async load(): Promise<void> {
    if (!this.#database) return;
    const kept = (await readAll(this.#database, "messages")) as StoredEntry[];
    for (const thread of (await readAll(this.#database, "threads")) as IndexedThread[]) this.#threads.set(thread.id, thread);
    for (const [count, { vector, ...entry }] of kept.entries()) {
      this.#addToMemory(entry, unpack(vector));
      if (count % LOAD_BATCH_SIZE === 0) await new Promise((resolve) => setTimeout(resolve));
    }
    // Each tab drops the oldest messages that it knows, so several tabs may have stored too many together.
    const dropped = this.#dropOldest();
    if (dropped.length > 0) await this.#write((messagesStore) => dropped.forEach((key) => messagesStore.delete(key)));
  }

  /** Load a thread again that another tab has changed. */
  async reload(threadId: string): Promise<void> {
    if (!this.#database) return;
    const kept = (await readAll(this.#database, "messages", { index: "threadId", key: threadId })) as StoredEntry[];
    const thread = ((await readAll(this.#database, "threads")) as IndexedThread[]).find(({ id }) => id === threadId);
    this.dropFromMemory(threadId);
    if (thread) this.#threads.set(threadId, thread);
    for (const { vector, ...entry } of kept) this.#addToMemory(entry, unpack(vector));
  }

  /**
   * Add new or changed messages of a thread, and its title, and return how many texts were new. Other messages stay, unless
   * `extent` shows that they were deleted. A revision older than the indexed one changes nothing.
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
      // By the index of the database: another tab may have stored more entries.
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

  /** Remove a thread from memory only. */
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
    // A title and the message that stands for it may both match.
    return this.#index.search(query, k + 1).flatMap(({ threadId, messageId, snippet, ranges, at, score, by }) => {
      const goal = messageId ?? this.#newestMessageId(threadId);
      if (goal === null || seen.has(goal) || seen.size === k) return [];
      seen.add(goal);
      return [{ threadId, messageId: goal, title: this.#threads.get(threadId)?.title ?? "", snippet, ranges, at, score, by }];
    });
  }

  /** The entries of the messages and of the title, whose time is that of the newest message ever given with it. */
  #entriesOf({ id, title }: IndexedThread, messages: readonly IndexedMessage[]): IndexEntry[] {
    const at = messages.reduce((newest, message) => Math.max(newest, message.at), this.#index.get(id)?.at ?? 0);
    const entries = messages.map((message): IndexEntry => ({ key: message.id, threadId: id, messageId: message.id, text: message.text, at: message.at }));
    return [...entries, { key: id, threadId: id, messageId: null, text: title, at }].map((entry) => ({ ...entry, text: entry.text.trim().slice(0, MAX_TEXT_CHARACTERS) }));
  }

  /** The keys of deleted messages: those within the extent's range that are not in the extent. */
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

/** Two bytes for each UTF-16 unit, and the packed vector. */
function bytesOf(entry: IndexEntry | null): number {
  return entry ? 2 * entry.text.length + 384 : 0;
}
