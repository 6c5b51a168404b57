// Between the feed and the page: follows what the page wants followed, and tells it what changed, as much at once as the
// page can take. Nothing piles up: what is not told yet is the difference of two states.

import type { Listed, Part, Participant, PartPage, Snapshot } from "../khala/frames.ts";
import { diffThread } from "../khala/patches.ts";
import { EMPTY_THREAD, EMPTY_THREAD_LIST, activeAnswer } from "../khala/state.ts";
import type { ThreadListState, ThreadState } from "../khala/state.ts";
import type { Batch, ListPatch, ThreadKeys, ToStream } from "./stream.messages.ts";

const SAVE_MS = 2000;
const MOST_PARTS = 1000;
/** What the server has not told by then of a thread that changed, it is asked for. */
const TELL_MS = 2000;
/** A store that takes longer is not waited for. */
const LOAD_MS = 500;

/** The part of `Feed` that is used here. */
export interface Followed {
  subscribe(threadId: string, keys: ThreadKeys, known?: ThreadState): void;
  unsubscribe(): void;
  watchThreads(isOn: boolean): void;
  setPresence(state: Record<string, unknown> | null): void;
  changeIdentity<Result>(change: () => Promise<Result>): Promise<Result>;
  addOlderMessages(threadId: string, page: Extract<ToStream, { type: "earlier" }>["page"]): void;
  addProgress(threadId: string, messageId: string, parts: readonly Part[]): void;
  checkConnection(): void;
}

/** The part of `Snapshots` that is used here. */
export interface Stored {
  load(threadId: string, who: string | null): Promise<ThreadState | null>;
  save(threadId: string, who: string | null, state: ThreadState, usedAt: number): Promise<void>;
  forget(threadId: string): Promise<void>;
  clear(): Promise<void>;
}

/** Ask the server for something by its path, with what opens the thread; undefined if that fails. */
export type Ask = <Answer>(path: string, keys: ThreadKeys) => Promise<Answer | undefined>;

type Target = { turn: number; asked: number; threadId: string; keys: ThreadKeys; who: string | null };

export class Relay {
  readonly #feed: Followed;
  readonly #stored: Stored;
  readonly #ask: Ask;
  readonly #post: (batch: Batch) => void;
  #turn = 0;
  #target: Target | null = null;
  /** What is stored of the thread, until the server tells. */
  #kept: ThreadState | null = null;
  #state = EMPTY_THREAD;
  #list = EMPTY_THREAD_LIST;
  #told = { state: EMPTY_THREAD, list: EMPTY_THREAD_LIST, isStale: false };
  #rest: Omit<Batch, "turn" | "patch" | "list" | "isStale"> = {};
  #phase: "connecting" | "live" | "waiting" = "connecting";
  #isWaiting = false;
  #isLoading = false;
  #isOnline = true;
  #lag = Infinity;
  #saving: ReturnType<typeof setTimeout> | null = null;
  #release: (() => void)[] = [];

  constructor({ feed, stored, ask, post }: { feed: Followed; stored: Stored; ask: Ask; post: (batch: Batch) => void }) {
    this.#feed = feed;
    this.#stored = stored;
    this.#ask = ask;
    this.#post = post;
  }

  /** What the page says. */
  async hear(message: Exclude<ToStream, { type: "start" }>): Promise<void> {
    switch (message.type) {
      case "follow":
        return this.#follow(message);
      case "leave":
        return this.#leave(message.turn);
      case "watch":
        return this.#watch(message.isOn);
      case "present":
        return this.#feed.setPresence(message.state);
      case "hold":
        return void this.#feed.changeIdentity(() => new Promise<void>((resolve) => this.#release.push(resolve)));
      case "release":
        return this.#release.shift()?.();
      case "earlier":
        return this.#feed.addOlderMessages(message.threadId, message.page);
      case "wake":
        return this.#wake(message.isOnline);
      case "taken":
        this.#isWaiting = false;
        return this.#tell();
      case "forget":
        return this.#forget(message.threadId);
      case "clear":
        this.#cancelSave();
        this.#kept = null;
        return this.#stored.clear();
    }
  }

  async #follow(target: Target): Promise<void> {
    const { turn, threadId, keys, who } = target;
    if (this.#target?.threadId === threadId && this.#target.turn === turn) {
      Object.assign(this.#target, target);
      if (this.#isLoading) return;
      return this.#feed.subscribe(threadId, keys);
    }
    this.#target = target;
    this.#isLoading = true;
    const kept = await Promise.race([this.#stored.load(threadId, who), new Promise<null>((resolve) => setTimeout(resolve, LOAD_MS, null))]);
    if (this.#target !== target) return;
    this.#isLoading = false;
    this.#kept = kept;
    this.#feed.subscribe(threadId, target.keys, kept ?? undefined);
    this.#showKept();
  }

  /**
   * Nothing is told of a thread that did not change since it was stored; its revision says that it is as stored. What did
   * change is about to be told: shown before that, the stored one would leave the page on a branch that was left since. If
   * the revision can't be asked for or nothing comes, all of it is asked for.
   */
  async #confirmKept(): Promise<void> {
    const [target, kept] = [this.#target, this.#kept];
    if (!target || !kept) return;
    const now = await this.#ask<Snapshot>(`/api/threads/${target.threadId}?limit=1`, target.keys);
    const isOpen = (): boolean => this.#target === target && this.#kept === kept && this.#phase === "live";
    if (!isOpen()) return;
    if (now?.revision === kept.revision) return this.takeState(kept, { isSnapshot: true, wasReset: false, lag: null });
    if (now) await new Promise((resolve) => setTimeout(resolve, TELL_MS));
    if (!isOpen()) return;
    this.#feed.unsubscribe();
    this.#feed.subscribe(target.threadId, target.keys);
  }

  /** A snapshot doesn't say how far an answer is that is being written; its newest parts mostly do. */
  async #learnProgress(state: ThreadState): Promise<void> {
    const [target, answer] = [this.#target, activeAnswer(state)];
    if (!target || !answer?.runId || !answer.content.some((block) => block.type === "tool")) return;
    const path = `/api/runs/${answer.runId}/parts?after=${Math.max(-1, answer.seq - MOST_PARTS - 1)}&limit=${MOST_PARTS}`;
    const page = await this.#ask<PartPage>(path, target.keys);
    if (page && this.#target === target) this.#feed.addProgress(target.threadId, answer.id, page.items);
  }

  #leave(turn: number): void {
    if (this.#saving !== null) this.#save();
    this.#feed.unsubscribe();
    this.#target = this.#kept = null;
    this.#state = EMPTY_THREAD;
    this.#told = { ...this.#told, state: EMPTY_THREAD, isStale: false };
    const { connection, signedOut } = this.#rest;
    this.#rest = { ...(connection && { connection }), ...(signedOut && { signedOut }) };
    this.#lag = Infinity;
    this.#turn = turn;
  }

  #watch(isOn: boolean): void {
    if (!isOn) this.#list = this.#told.list = EMPTY_THREAD_LIST;
    this.#feed.watchThreads(isOn);
  }

  #wake(isOnline: boolean): void {
    this.#isOnline = isOnline;
    this.#feed.checkConnection();
    this.#showKept();
  }

  async #forget(threadId: string): Promise<void> {
    if (this.#target?.threadId === threadId) {
      this.#cancelSave();
      this.#kept = null;
    }
    await this.#stored.forget(threadId);
  }

  /** What is stored is shown where the server does not answer; else the server's word is not far. */
  #showKept(): void {
    if (this.#showsKept) this.#tell();
  }

  get #showsKept(): boolean {
    return this.#state.revision === null && this.#kept !== null && (this.#phase === "waiting" || !this.#isOnline || this.#told.isStale);
  }

  // What the feed tells

  /** `lag`: how far our clock is ahead of what a part was made at, in ms. */
  takeState(state: ThreadState, { isSnapshot, wasReset, lag }: { isSnapshot: boolean; wasReset: boolean; lag: number | null }): void {
    if (lag !== null && lag < this.#lag) this.#rest.lag = this.#lag = lag;
    if (wasReset) this.#rest.wasReset = true;
    this.#state = state;
    this.#kept = null;
    this.#saving ??= setTimeout(() => this.#save(), SAVE_MS);
    this.#tell();
    if (isSnapshot) void this.#learnProgress(state);
  }

  takeList(list: ThreadListState): void {
    for (const id of this.#list.entries.keys()) if (!list.entries.has(id)) void this.#stored.forget(id);
    this.#list = list;
    this.#tell();
  }

  takePresent(participants: Participant[], more: number): void {
    this.#rest.present = { participants, more };
    this.#tell();
  }

  takeConnection(connection: NonNullable<Batch["connection"]>): void {
    this.#phase = connection.phase;
    this.#rest.connection = connection;
    this.#tell();
    if (connection.phase === "live") void this.#confirmKept();
  }

  /** Who may not read a thread (any more) keeps nothing of it. */
  takeRefusal(code: string, message: string): void {
    this.#rest.refusal = { code, message, asked: this.#target?.asked ?? 0 };
    if (this.#target && code !== "protocol") void this.#forget(this.#target.threadId);
    if (code !== "protocol") this.#state = this.#told.state = EMPTY_THREAD;
    this.#tell();
  }

  takeSignedOut(): void {
    this.#rest.signedOut = true;
    this.#list = this.#told.list = EMPTY_THREAD_LIST;
    this.#tell();
  }

  #tell(): void {
    if (this.#isWaiting) return;
    const batch = this.#batch();
    if (Object.keys(batch).length === 1) return;
    this.#isWaiting = true;
    this.#post(batch);
  }

  #batch(): Batch {
    const isStale = this.#showsKept;
    const state = isStale && this.#kept ? this.#kept : this.#state;
    const batch: Batch = { turn: this.#turn, ...this.#rest };
    if (state.revision !== null && state !== this.#told.state) batch.patch = diffThread(this.#told.state.revision === null ? null : this.#told.state, state);
    if (isStale !== this.#told.isStale) batch.isStale = isStale;
    if (this.#list !== this.#told.list) batch.list = listDiff(this.#told.list, this.#list);
    this.#told = { state: state.revision === null ? this.#told.state : state, list: this.#list, isStale };
    this.#rest = {};
    return batch;
  }

  #cancelSave(): void {
    if (this.#saving !== null) clearTimeout(this.#saving);
    this.#saving = null;
  }

  #save(): void {
    this.#cancelSave();
    if (this.#target && this.#state.revision !== null) void this.#stored.save(this.#target.threadId, this.#target.who, this.#state, Date.now());
  }
}

/** What changed between two lists; entries that did not change are the same objects. */
function listDiff(before: ThreadListState, after: ThreadListState): ListPatch {
  const whole = before.revision === null;
  const entries: Listed[] = [...after.entries].filter(([id, entry]) => whole || before.entries.get(id) !== entry).map(([, entry]) => entry);
  const removed = whole ? [] : [...before.entries.keys()].filter((id) => !after.entries.has(id));
  return { whole, revision: after.revision, entries, removed, hasMore: after.hasMore, invitations: after.invitations };
}
