// The feed: one connection that follows a thread and an account's list of threads, each by its revision.

import type { AccountDelta, AccountFrame, DeltaFrame, ErrorFrame, Message, Older, Part, Participant, ServerFrame, SnapshotFrame } from "./frames.ts";
import type { FeedConnection, LineOptions } from "./line.ts";
import { Line } from "./line.ts";
import type { Keys } from "./requests.ts";
import type { ListState, ThreadState } from "./state.ts";
import { EMPTY, UNLISTED, activeAnswer, applyAccount, applyDelta, fromSnapshot, withEarlier, withProgress } from "./state.ts";

export type { FeedConnection, Socket } from "./line.ts";
export type { LineOptions as FeedOptions } from "./line.ts";

const REPAIR_MS = 5_000;
const REFUSALS: readonly string[] = ["forbidden", "thread_not_found", "unauthorized", "gone", "invalid_input"];

/** What a feed tells of. */
export interface FeedListener {
  /** Each new state of the thread; `frame` is what brought it, or null if it was adopted from elsewhere. */
  state: (state: ThreadState, frame: SnapshotFrame | DeltaFrame | null) => void;
  /** Each new state of the account's list. */
  listed?: (list: ListState) => void;
  /** Who is present in the thread, at most 50, and how many more. */
  present?: (participants: readonly Participant[], more: number) => void;
  connection?: (connection: FeedConnection) => void;
  /** The server will not let us follow the thread, or not any more; we stop. Code "protocol": the server speaks another version of it. */
  refused?: (code: string, message: string) => void;
  /** There is no account whose list we could follow. */
  signedOut?: () => void;
  /** An error that concerns nothing that is followed. */
  complaint?: (code: string, message: string) => void;
}

interface Target extends Pick<Keys, "anonKey" | "shareKey"> {
  threadId: string;
}

/**
 * Follows one thread at a time, and the account's list where asked to, and heals itself: a lost connection is made again,
 * a gap is asked for again. It stops only when it is told to, or refused.
 */
export class Feed {
  readonly #on: FeedListener;
  readonly #line: Line;
  #target: Target | null = null;
  #state: ThreadState = EMPTY;
  #presence: Record<string, unknown> | null = null;
  #list: ListState | null = null;
  #token: string | null = null;
  #changing = 0;
  #mustStartOver = false;
  #repairSince: number | null = null;
  #listRepairSince: number | null = null;

  /** `url` is that of the server's `/api/ws`. */
  constructor(url: string, on: FeedListener, options: LineOptions = {}) {
    this.#on = on;
    const connection = (connection: FeedConnection): void => on.connection?.(connection);
    const stranger = (): void => this.#leaveFor("protocol", "The server speaks another version of the protocol.");
    const lost = (): void => void (this.#repairSince = this.#listRepairSince = null);
    const heard = { live: () => this.#begin(), frame: (frame: ServerFrame) => this.#hear(frame), quiet: () => this.#askInSilence() };
    this.#line = new Line(url, { connection, stranger, lost, ...heard }, options);
  }

  /**
   * Follow this thread instead of the one before; `keys` are whatever of them opens it. `known` is what was known of it
   * at another time: it is gone on from there, if the server still can.
   */
  follow(threadId: string, keys: Keys = {}, known: ThreadState = EMPTY): void {
    if (this.#target?.threadId !== threadId) {
      this.#part();
      this.#state = known;
    }
    const { anonKey, shareKey, token } = keys;
    this.#target = { threadId, ...(anonKey && { anonKey }), ...(shareKey && { shareKey }) };
    const isNew = token !== undefined && token !== this.#token;
    if (isNew) this.#token = token;
    if (this.#changing) return;
    if (!this.#line.isLive) return this.wake();
    this.#on.connection?.({ phase: "live" });
    if (isNew) this.#line.send({ type: "authenticate", token });
    this.#subscribe();
  }

  /** Follow no thread; the connection stays only for the list. */
  leave(): void {
    this.#part();
    if (!this.#list) this.#line.hangUp();
  }

  /** Follow the list of the account that the connection acts for, or not any more. */
  watch(isOn: boolean): void {
    if (isOn === (this.#list !== null)) return;
    this.#list = isOn ? UNLISTED : null;
    if (this.#changing) return;
    if (this.#line.isLive) this.#line.send({ type: isOn ? "watch" : "unwatch" });
    else if (isOn) this.wake();
  }

  /** Be present in the thread with this state of our own, on every connection to come, too; null leaves. */
  announce(state: Record<string, unknown> | null): void {
    const changes = state !== null || this.#presence !== null;
    this.#presence = state;
    if (changes && this.#target && this.#line.isLive) this.#line.send({ type: "presence", threadId: this.#target.threadId, state });
  }

  /**
   * Do what changes who we are to the server, then connect anew as whoever we are by then; what is followed goes on from
   * where it was. What we are refused meanwhile may be ours then, so it is asked for again.
   */
  async as<T>(change: () => Promise<T>): Promise<T> {
    this.#changing++;
    try {
      return await change();
    } finally {
      this.#changing--;
      if (!this.#changing && (this.#target || this.#list)) this.#line.connect();
    }
  }

  /** Put a page of older messages before what is known; nothing happens if another thread is followed by now. */
  adoptEarlier(threadId: string, page: Older<Message>): void {
    if (this.#target?.threadId === threadId) this.#adopt(withEarlier(this.#state, page));
  }

  /** Learn from parts how far an answer is, which a snapshot doesn't say. */
  adoptProgress(threadId: string, messageId: string, parts: readonly Part[]): void {
    if (this.#target?.threadId === threadId) this.#adopt(withProgress(this.#state, messageId, parts));
  }

  /** The network or the tab has come back: connect at once, or make sure that the connection still lives. */
  wake(): void {
    if (this.#target || this.#list) this.#line.wake();
  }

  /** Follow nothing, and hang up. */
  close(): void {
    this.#list = null;
    this.leave();
  }

  #part(): void {
    if (this.#target && this.#line.isLive) this.#line.send({ type: "unsubscribe", threadId: this.#target.threadId });
    this.#target = this.#presence = this.#repairSince = null;
    this.#state = EMPTY;
    this.#mustStartOver = false;
  }

  #adopt(state: ThreadState): void {
    this.#state = state;
    this.#on.state(state, null);
  }

  #begin(): void {
    if (this.#token) this.#line.send({ type: "authenticate", token: this.#token });
    if (this.#target) this.#subscribe();
    if (this.#presence) this.announce(this.#presence);
    if (this.#list) this.#watch(this.#list);
  }

  #subscribe(): void {
    if (!this.#target) return;
    const { revision } = this.#state;
    this.#line.send({ type: "subscribe", ...this.#target, ...(revision !== null && !this.#mustStartOver && { after: revision }) });
  }

  #watch({ revision }: ListState): void {
    this.#line.send({ type: "watch", ...(revision !== null && { after: revision }) });
  }

  #hear(frame: ServerFrame): void {
    if (frame.type === "error") this.#trouble(frame);
    else if (frame.type === "account") this.#takeList(frame);
    else if ("threadId" in frame && frame.threadId === this.#target?.threadId) this.#take(frame);
  }

  #take(frame: Extract<ServerFrame, { threadId: string }>): void {
    switch (frame.type) {
      case "snapshot":
        return this.#accept(fromSnapshot(frame), frame);
      case "delta":
        return this.#mustStartOver ? undefined : this.#takeDelta(frame);
      case "gone":
        return this.#refuse(frame.code, "");
      case "presence":
        return this.#on.present?.(frame.participants, frame.more ?? 0);
    }
  }

  #takeDelta(frame: DeltaFrame): void {
    const { state, outcome } = applyDelta(this.#state, frame);
    if (outcome === "applied") this.#accept(state, frame);
    else if (outcome === "gap") this.#repair();
    else if (outcome === "broken") this.#startOver();
  }

  #accept(state: ThreadState, frame: SnapshotFrame | DeltaFrame): void {
    this.#repairSince = null;
    this.#mustStartOver = false;
    this.#state = state;
    this.#on.state(state, frame);
  }

  #takeList(frame: AccountFrame | AccountDelta): void {
    if (!this.#list) return;
    const { list, outcome } = applyAccount(this.#list, frame);
    if (outcome === "gap") return this.#repairList(this.#list);
    if (outcome !== "applied") return;
    this.#listRepairSince = null;
    this.#list = list;
    this.#on.listed?.(list);
  }

  /** As with a thread: ask once for what is missing, and for all of it if that does not help. */
  #repairList(list: ListState): void {
    const now = performance.now();
    const since = this.#listRepairSince;
    if (since !== null && now - since < REPAIR_MS) return;
    this.#listRepairSince = now;
    this.#watch(since === null ? list : UNLISTED);
  }

  /** Ask once for what is missing; what still arrives on the old chain is of no use, and a cure that does not come is none. */
  #repair(): void {
    const now = performance.now();
    if (this.#repairSince === null) this.#subscribe();
    else if (now - this.#repairSince > REPAIR_MS) return this.#startOver();
    this.#repairSince ??= now;
  }

  /** What we hold stays in sight until the snapshot comes. */
  #startOver(): void {
    this.#mustStartOver = true;
    this.#line.retry();
  }

  /**
   * A long silence within an answer is a reason to ask again for what came after our revision: nothing later would
   * reveal that its last frame went missing.
   */
  #askInSilence(): void {
    if (this.#target && activeAnswer(this.#state)) this.#subscribe();
  }

  #trouble({ threadId, code, message }: ErrorFrame): void {
    if (threadId && threadId !== this.#target?.threadId) return;
    if (!threadId && code === "unauthorized") this.#loseList();
    else if (threadId && REFUSALS.includes(code)) this.#refuse(code, message);
    else if (threadId || code === "unavailable") this.#line.retry(1);
    else this.#on.complaint?.(code, message);
  }

  #loseList(): void {
    if (this.#changing || !this.#list) return;
    this.#list = null;
    this.#on.signedOut?.();
  }

  #refuse(code: string, message: string): void {
    if (!this.#changing) this.#leaveFor(code, message);
  }

  #leaveFor(code: string, message: string): void {
    if (code === "protocol") this.#list = null;
    this.leave();
    this.#on.refused?.(code, message);
  }
}
