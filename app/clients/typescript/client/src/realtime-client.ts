// The realtime client: one connection that follows one thread and the account's thread list, each by its revision.

import type { AccountDelta, AccountFrame, DeltaFrame, ErrorFrame, Message, OlderMessages, Part, Participant, ServerFrame, SnapshotFrame } from "./frames.ts";
import type { ConnectionState, RealtimeOptions, SocketListener } from "./reconnecting-socket.ts";
import { ReconnectingSocket } from "./reconnecting-socket.ts";
import type { AccessKeys } from "./requests.ts";
import type { ThreadListState, ThreadState } from "./state.ts";
import { isPlanActive } from "./plans.ts";
import { EMPTY_THREAD, EMPTY_THREAD_LIST, activeAnswer, applyAccountFrame, applyDelta, fromSnapshot, withOlderMessages, withProgress } from "./state.ts";

export type { ConnectionState, RealtimeOptions, WebSocketConstructor, WebSocketLike } from "./reconnecting-socket.ts";

const REPAIR_TIMEOUT_MS = 5_000;
const REFUSAL_CODES: readonly string[] = ["forbidden", "thread_not_found", "unauthorized", "gone", "invalid_input"];

/** Callbacks of a `RealtimeClient`. */
export interface RealtimeListener {
  /** The thread has a new state. `frame` caused it; it is null after `addOlderMessages` and `addProgress`. */
  onThread: (state: ThreadState, frame: SnapshotFrame | DeltaFrame | null) => void;
  /** The account's thread list has a new state. */
  onThreadList?: (list: ThreadListState) => void;
  /** The participants of the thread, at most 50, and the number of further ones. */
  onPresence?: (participants: readonly Participant[], more: number) => void;
  onConnection?: (connection: ConnectionState) => void;
  /**
   * The server refuses the subscription to the thread, or has ended it; the client has unsubscribed. Code "protocol" means
   * that the server speaks another protocol version.
   */
  onRefused?: (code: string, message: string) => void;
  /** The connection acts for no account, so there is no thread list to watch. */
  onSignedOut?: () => void;
  /** The server reported an error that concerns no subscription. */
  onError?: (code: string, message: string) => void;
}

interface Target extends Pick<AccessKeys, "anonKey" | "shareKey"> {
  threadId: string;
}

/**
 * Follows one thread at a time and, on request, the account's thread list. It recovers by itself: it reconnects a lost
 * connection with exponential backoff, and requests missing revisions again. It stops when it is closed or refused.
 */
export class RealtimeClient {
  readonly #listener: RealtimeListener;
  readonly #socket: ReconnectingSocket;
  #target: Target | null = null;
  #state: ThreadState = EMPTY_THREAD;
  #presence: Record<string, unknown> | null = null;
  #list: ThreadListState | null = null;
  #token: string | null = null;
  #identityChanges = 0;
  #needsSnapshot = false;
  #repairSince: number | null = null;
  #listRepairSince: number | null = null;

  /** `url` is the address of the server's `/api/ws`. */
  constructor(url: string, listener: RealtimeListener, options: RealtimeOptions = {}) {
    this.#listener = listener;
    const socketListener: SocketListener = {
      onConnection: (connection) => listener.onConnection?.(connection),
      onOpen: () => this.#resume(),
      onProtocolMismatch: () => this.#stopFollowing("protocol", "The server speaks another version of the protocol."),
      onFrame: (frame) => this.#receive(frame),
      onSilence: () => this.#resubscribeInSilence(),
      onClose: () => void (this.#repairSince = this.#listRepairSince = null),
    };
    this.#socket = new ReconnectingSocket(url, socketListener, options);
  }

  /**
   * Follow this thread instead of the previous one. `keys` grant access to it. `known` is an earlier state of the thread:
   * the client continues from its revision if the server still can. Calling it again for the same thread replaces the keys.
   */
  subscribe(threadId: string, keys: AccessKeys = {}, known: ThreadState = EMPTY_THREAD): void {
    if (this.#target?.threadId !== threadId) {
      this.#leaveThread();
      this.#state = known;
    }
    const { anonKey, shareKey, token } = keys;
    this.#target = { threadId, ...(anonKey && { anonKey }), ...(shareKey && { shareKey }) };
    const isNew = token !== undefined && token !== this.#token;
    if (isNew) this.#token = token;
    if (this.#identityChanges) return;
    if (!this.#socket.isLive) return this.checkConnection();
    this.#listener.onConnection?.({ phase: "live" });
    if (isNew) this.#socket.send({ type: "authenticate", token });
    this.#sendSubscribe();
  }

  /** Stop following the thread. The connection stays open only while the thread list is watched. */
  unsubscribe(): void {
    this.#leaveThread();
    if (!this.#list) this.#socket.close();
  }

  /** Act with this token from now on. The server authorises later requests of this connection by it. */
  authenticate(token: string): void {
    if (token === this.#token) return;
    this.#token = token;
    if (this.#socket.isLive && !this.#identityChanges) this.#socket.send({ type: "authenticate", token });
  }

  /** Start or stop watching the thread list of the account that the connection acts for. */
  watchThreads(isOn: boolean): void {
    if (isOn === (this.#list !== null)) return;
    this.#list = isOn ? EMPTY_THREAD_LIST : null;
    if (this.#identityChanges) return;
    if (this.#socket.isLive) this.#socket.send({ type: isOn ? "watch" : "unwatch" });
    else if (isOn) this.checkConnection();
  }

  /** Set the presence state that others see in the thread; null leaves. It is sent again after each reconnect. */
  setPresence(state: Record<string, unknown> | null): void {
    const changes = state !== null || this.#presence !== null;
    this.#presence = state;
    if (changes && this.#target && this.#socket.isLive) this.#socket.send({ type: "presence", threadId: this.#target.threadId, state });
  }

  /**
   * Run `change`, which signs in, signs out or claims threads, then reconnect with the new identity. Subscriptions continue
   * from their revisions. Refusals that arrive during `change` are ignored, because the new identity may have access.
   */
  async changeIdentity<T>(change: () => Promise<T>): Promise<T> {
    this.#identityChanges++;
    try {
      return await change();
    } finally {
      this.#identityChanges--;
      if (!this.#identityChanges && (this.#target || this.#list)) this.#socket.connect();
    }
  }

  /** Add a page of older messages to the state; does nothing if another thread is followed by now. */
  addOlderMessages(threadId: string, page: OlderMessages<Message>): void {
    if (this.#target?.threadId === threadId) this.#replaceState(withOlderMessages(this.#state, page));
  }

  /** Add an answer's current step and tool start times, which a snapshot does not contain, from its parts. */
  addProgress(threadId: string, messageId: string, parts: readonly Part[]): void {
    if (this.#target?.threadId === threadId) this.#replaceState(withProgress(this.#state, messageId, parts));
  }

  /** Connect at once, or check that the connection still works. Call it when the network or the tab comes back. */
  checkConnection(): void {
    if (this.#target || this.#list) this.#socket.checkConnection();
  }

  /** Stop following everything and close the connection. */
  close(): void {
    this.#list = null;
    this.unsubscribe();
  }

  #leaveThread(): void {
    if (this.#target && this.#socket.isLive) this.#socket.send({ type: "unsubscribe", threadId: this.#target.threadId });
    this.#target = this.#presence = this.#repairSince = null;
    this.#state = EMPTY_THREAD;
    this.#needsSnapshot = false;
  }

  #replaceState(state: ThreadState): void {
    this.#state = state;
    this.#listener.onThread(state, null);
  }

  #resume(): void {
    if (this.#token) this.#socket.send({ type: "authenticate", token: this.#token });
    if (this.#target) this.#sendSubscribe();
    if (this.#presence) this.setPresence(this.#presence);
    if (this.#list) this.#sendWatch(this.#list);
  }

  #sendSubscribe(): void {
    if (!this.#target) return;
    const { revision } = this.#state;
    this.#socket.send({ type: "subscribe", ...this.#target, ...(revision !== null && !this.#needsSnapshot && { after: revision }) });
  }

  #sendWatch({ revision }: ThreadListState): void {
    this.#socket.send({ type: "watch", ...(revision !== null && { after: revision }) });
  }

  #receive(frame: ServerFrame): void {
    if (frame.type === "error") this.#handleError(frame);
    else if (frame.type === "account") this.#applyAccountFrame(frame);
    else if (frame.type === "authenticated") return;
    else if ("threadId" in frame && frame.threadId === this.#target?.threadId) this.#applyThreadFrame(frame);
  }

  #applyThreadFrame(frame: Extract<ServerFrame, { threadId: string }>): void {
    switch (frame.type) {
      case "snapshot":
        return this.#acceptState(fromSnapshot(frame), frame);
      case "delta":
        return this.#needsSnapshot ? undefined : this.#applyThreadDelta(frame);
      case "gone":
        return this.#refuse(frame.code, "");
      case "presence":
        return this.#listener.onPresence?.(frame.participants, frame.more ?? 0);
    }
  }

  #applyThreadDelta(frame: DeltaFrame): void {
    const { state, outcome } = applyDelta(this.#state, frame);
    if (outcome === "applied") this.#acceptState(state, frame);
    else if (outcome === "gap") this.#repair();
    else if (outcome === "broken") this.#requestSnapshot();
  }

  #acceptState(state: ThreadState, frame: SnapshotFrame | DeltaFrame): void {
    this.#repairSince = null;
    this.#needsSnapshot = false;
    this.#state = state;
    this.#listener.onThread(state, frame);
  }

  #applyAccountFrame(frame: AccountFrame | AccountDelta): void {
    if (!this.#list) return;
    const { list, outcome } = applyAccountFrame(this.#list, frame);
    if (outcome === "gap") return this.#repairList(this.#list);
    if (outcome !== "applied") return;
    this.#listRepairSince = null;
    this.#list = list;
    this.#listener.onThreadList?.(list);
  }

  /** Request the missing changes once, then the whole list if they do not arrive in time. */
  #repairList(list: ThreadListState): void {
    const now = performance.now();
    const since = this.#listRepairSince;
    if (since !== null && now - since < REPAIR_TIMEOUT_MS) return;
    this.#listRepairSince = now;
    this.#sendWatch(since === null ? list : EMPTY_THREAD_LIST);
  }

  /** Request the missing revisions once, then a snapshot if they do not arrive in time. Frames that still follow the gap are not applied. */
  #repair(): void {
    const now = performance.now();
    if (this.#repairSince === null) this.#sendSubscribe();
    else if (now - this.#repairSince > REPAIR_TIMEOUT_MS) return this.#requestSnapshot();
    this.#repairSince ??= now;
  }

  /** Reconnect and subscribe without a revision. The current state stays until the snapshot arrives. */
  #requestSnapshot(): void {
    this.#needsSnapshot = true;
    this.#socket.reconnectLater();
  }

  /**
   * Request newer revisions again after a long silence within an answer or a running plan. If its last frame was lost, no
   * later frame would reveal the gap.
   */
  #resubscribeInSilence(): void {
    if (this.#target && (activeAnswer(this.#state) || this.#state.plans.some(isPlanActive))) this.#sendSubscribe();
  }

  #handleError({ threadId, code, message }: ErrorFrame): void {
    if (threadId && threadId !== this.#target?.threadId) return;
    if (!threadId && code === "unauthorized") this.#stopWatching();
    else if (threadId && REFUSAL_CODES.includes(code)) this.#refuse(code, message);
    else if (threadId || code === "unavailable") this.#socket.reconnectLater(1);
    else this.#listener.onError?.(code, message);
  }

  #stopWatching(): void {
    if (this.#identityChanges || !this.#list) return;
    this.#list = null;
    this.#listener.onSignedOut?.();
  }

  #refuse(code: string, message: string): void {
    if (!this.#identityChanges) this.#stopFollowing(code, message);
  }

  #stopFollowing(code: string, message: string): void {
    if (code === "protocol") this.#list = null;
    this.unsubscribe();
    this.#listener.onRefused?.(code, message);
  }
}
