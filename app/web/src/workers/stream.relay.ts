// The relay between the realtime client and the page: subscribes to what the page shows, and posts batches of changes as fast
// as the page takes them. There is no backlog: a batch is the difference between two states.

import { activeAnswer, diffThread, EMPTY_THREAD, EMPTY_THREAD_LIST } from "@khala/client";
import type { Part, Participant, PartPage, Snapshot, ThreadListEntry, ThreadListState, ThreadState } from "@khala/client";
import type { Batch, ListPatch, ThreadKeys, ToStream } from "./stream.messages.ts";

const SAVE_DELAY_MS = 2000;
const MAX_PROGRESS_PARTS = 1000;
/** A stored thread that has changed is requested as a whole if no update arrives within this time. */
const UPDATE_TIMEOUT_MS = 2000;
/** A slower store is not waited for. */
const LOAD_TIMEOUT_MS = 500;

/** The part of `RealtimeClient` that is used here. */
export interface RelayClient {
  subscribe(threadId: string, keys: ThreadKeys, known?: ThreadState): void;
  unsubscribe(): void;
  watchThreads(isOn: boolean): void;
  setPresence(state: Record<string, unknown> | null): void;
  changeIdentity<Result>(change: () => Promise<Result>): Promise<Result>;
  addOlderMessages(threadId: string, page: Extract<ToStream, { type: "earlier" }>["page"]): void;
  addProgress(threadId: string, messageId: string, parts: readonly Part[]): void;
  checkConnection(): void;
}

/** The part of `SnapshotStore` that is used here. */
export interface ThreadStorage {
  load(threadId: string, who: string | null): Promise<ThreadState | null>;
  save(threadId: string, who: string | null, state: ThreadState, usedAt: number): Promise<void>;
  forget(threadId: string): Promise<void>;
  clear(): Promise<void>;
}

/** Sends a GET request with the thread's keys; undefined if it fails. */
export type ApiGet = <Answer>(path: string, keys: ThreadKeys) => Promise<Answer | undefined>;

type Target = { generation: number; attempt: number; threadId: string; keys: ThreadKeys; who: string | null };

export class Relay {
  readonly #client: RelayClient;
  readonly #storage: ThreadStorage;
  readonly #get: ApiGet;
  readonly #post: (batch: Batch) => void;
  #generation = 0;
  #target: Target | null = null;
  /** The stored snapshot of the thread, until the server has answered. */
  #storedState: ThreadState | null = null;
  #state = EMPTY_THREAD;
  #list = EMPTY_THREAD_LIST;
  #posted = { state: EMPTY_THREAD, list: EMPTY_THREAD_LIST, isStale: false };
  #pending: Omit<Batch, "generation" | "patch" | "list" | "isStale"> = {};
  #phase: "connecting" | "live" | "waiting" = "connecting";
  #isAwaitingAck = false;
  #isLoading = false;
  #isOnline = true;
  #lag = Infinity;
  #saveTimer: ReturnType<typeof setTimeout> | null = null;
  #releases: (() => void)[] = [];

  constructor({ feed, stored, ask, post }: { feed: RelayClient; stored: ThreadStorage; ask: ApiGet; post: (batch: Batch) => void }) {
    this.#client = feed;
    this.#storage = stored;
    this.#get = ask;
    this.#post = post;
  }

  /** Handle a message of the page. */
  async receive(message: Exclude<ToStream, { type: "start" }>): Promise<void> {
    switch (message.type) {
      case "follow":
        return this.#follow(message);
      case "leave":
        return this.#leave(message.generation);
      case "watch":
        return this.#watch(message.isOn);
      case "present":
        return this.#client.setPresence(message.state);
      case "hold":
        return void this.#client.changeIdentity(() => new Promise<void>((resolve) => this.#releases.push(resolve)));
      case "release":
        return this.#releases.shift()?.();
      case "earlier":
        return this.#client.addOlderMessages(message.threadId, message.page);
      case "wake":
        return this.#wake(message.isOnline);
      case "taken":
        this.#isAwaitingAck = false;
        return this.#postBatch();
      case "forget":
        return this.#forget(message.threadId);
      case "clear":
        this.#cancelSave();
        this.#storedState = null;
        return this.#storage.clear();
    }
  }

  async #follow(target: Target): Promise<void> {
    const { generation, threadId, keys, who } = target;
    if (this.#target?.threadId === threadId && this.#target.generation === generation) {
      Object.assign(this.#target, target);
      if (this.#isLoading) return;
      return this.#client.subscribe(threadId, keys);
    }
    this.#target = target;
    this.#isLoading = true;
    const kept = await Promise.race([this.#storage.load(threadId, who), new Promise<null>((resolve) => setTimeout(resolve, LOAD_TIMEOUT_MS, null))]);
    if (this.#target !== target) return;
    this.#isLoading = false;
    this.#storedState = kept;
    this.#client.subscribe(threadId, target.keys, kept ?? undefined);
    this.#showStored();
  }

  /**
   * Confirm the stored snapshot after a connect. The server sends nothing for a thread that has not changed, so its revision is
   * requested: an equal revision confirms the snapshot. An update is about to arrive otherwise; showing the snapshot before it
   * would leave the page on an outdated branch. If the revision is unavailable or no update arrives, subscribe without a revision.
   */
  async #confirmStored(): Promise<void> {
    const [target, kept] = [this.#target, this.#storedState];
    if (!target || !kept) return;
    const now = await this.#get<Snapshot>(`/api/threads/${target.threadId}?limit=1`, target.keys);
    const isOpen = (): boolean => this.#target === target && this.#storedState === kept && this.#phase === "live";
    if (!isOpen()) return;
    if (now?.revision === kept.revision) return this.updateThread(kept, { isSnapshot: true, wasReset: false, lag: null });
    if (now) await new Promise((resolve) => setTimeout(resolve, UPDATE_TIMEOUT_MS));
    if (!isOpen()) return;
    this.#client.unsubscribe();
    this.#client.subscribe(target.threadId, target.keys);
  }

  /** A snapshot does not contain the current step of an active answer; the newest parts mostly do. */
  async #loadProgress(state: ThreadState): Promise<void> {
    const [target, answer] = [this.#target, activeAnswer(state)];
    if (!target || !answer?.runId || !answer.content.some((block) => block.type === "tool")) return;
    const path = `/api/runs/${answer.runId}/parts?after=${Math.max(-1, answer.seq - MAX_PROGRESS_PARTS - 1)}&limit=${MAX_PROGRESS_PARTS}`;
    const page = await this.#get<PartPage>(path, target.keys);
    if (page && this.#target === target) this.#client.addProgress(target.threadId, answer.id, page.items);
  }

  #leave(generation: number): void {
    if (this.#saveTimer !== null) this.#save();
    this.#client.unsubscribe();
    this.#target = this.#storedState = null;
    this.#state = EMPTY_THREAD;
    this.#posted = { ...this.#posted, state: EMPTY_THREAD, isStale: false };
    const { connection, signedOut } = this.#pending;
    this.#pending = { ...(connection && { connection }), ...(signedOut && { signedOut }) };
    this.#lag = Infinity;
    this.#generation = generation;
  }

  #watch(isOn: boolean): void {
    if (!isOn) this.#list = this.#posted.list = EMPTY_THREAD_LIST;
    this.#client.watchThreads(isOn);
  }

  #wake(isOnline: boolean): void {
    this.#isOnline = isOnline;
    this.#client.checkConnection();
    this.#showStored();
  }

  async #forget(threadId: string): Promise<void> {
    if (this.#target?.threadId === threadId) {
      this.#cancelSave();
      this.#storedState = null;
    }
    await this.#storage.forget(threadId);
  }

  /** Show the stored snapshot while the server is out of reach. Otherwise the server's answer is about to arrive. */
  #showStored(): void {
    if (this.#showsStored) this.#postBatch();
  }

  get #showsStored(): boolean {
    return this.#state.revision === null && this.#storedState !== null && (this.#phase === "waiting" || !this.#isOnline || this.#posted.isStale);
  }

  // Updates from the realtime client

  /** `lag` is how far this clock is ahead of the creation time of the newest part, in ms. */
  updateThread(state: ThreadState, { isSnapshot, wasReset, lag }: { isSnapshot: boolean; wasReset: boolean; lag: number | null }): void {
    if (lag !== null && lag < this.#lag) this.#pending.lag = this.#lag = lag;
    if (wasReset) this.#pending.wasReset = true;
    this.#state = state;
    this.#storedState = null;
    this.#saveTimer ??= setTimeout(() => this.#save(), SAVE_DELAY_MS);
    this.#postBatch();
    if (isSnapshot) void this.#loadProgress(state);
  }

  updateList(list: ThreadListState): void {
    for (const id of this.#list.entries.keys()) if (!list.entries.has(id)) void this.#storage.forget(id);
    this.#list = list;
    this.#postBatch();
  }

  updatePresence(participants: Participant[], more: number): void {
    this.#pending.present = { participants, more };
    this.#postBatch();
  }

  updateConnection(connection: NonNullable<Batch["connection"]>): void {
    this.#phase = connection.phase;
    this.#pending.connection = connection;
    this.#postBatch();
    if (connection.phase === "live") void this.#confirmStored();
  }

  /** Delete the stored snapshot of a thread that this browser may not read any more. */
  handleRefusal(code: string, message: string): void {
    this.#pending.refusal = { code, message, attempt: this.#target?.attempt ?? 0 };
    if (this.#target && code !== "protocol") void this.#forget(this.#target.threadId);
    if (code !== "protocol") this.#state = this.#posted.state = EMPTY_THREAD;
    this.#postBatch();
  }

  handleSignedOut(): void {
    this.#pending.signedOut = true;
    this.#list = this.#posted.list = EMPTY_THREAD_LIST;
    this.#postBatch();
  }

  #postBatch(): void {
    if (this.#isAwaitingAck) return;
    const batch = this.#nextBatch();
    if (Object.keys(batch).length === 1) return;
    this.#isAwaitingAck = true;
    this.#post(batch);
  }

  #nextBatch(): Batch {
    const isStale = this.#showsStored;
    const state = isStale && this.#storedState ? this.#storedState : this.#state;
    const batch: Batch = { generation: this.#generation, ...this.#pending };
    if (state.revision !== null && state !== this.#posted.state) batch.patch = diffThread(this.#posted.state.revision === null ? null : this.#posted.state, state);
    if (isStale !== this.#posted.isStale) batch.isStale = isStale;
    if (this.#list !== this.#posted.list) batch.list = diffList(this.#posted.list, this.#list);
    this.#posted = { state: state.revision === null ? this.#posted.state : state, list: this.#list, isStale };
    this.#pending = {};
    return batch;
  }

  #cancelSave(): void {
    if (this.#saveTimer !== null) clearTimeout(this.#saveTimer);
    this.#saveTimer = null;
  }

  #save(): void {
    this.#cancelSave();
    if (this.#target && this.#state.revision !== null) void this.#storage.save(this.#target.threadId, this.#target.who, this.#state, Date.now());
  }
}

/** The changes between two lists. Unchanged entries are the same objects. */
function diffList(before: ThreadListState, after: ThreadListState): ListPatch {
  const whole = before.revision === null;
  const entries: ThreadListEntry[] = [...after.entries].filter(([id, entry]) => whole || before.entries.get(id) !== entry).map(([, entry]) => entry);
  const removed = whole ? [] : [...before.entries.keys()].filter((id) => !after.entries.has(id));
  return { whole, revision: after.revision, entries, removed, hasMore: after.hasMore, invitations: after.invitations };
}
