// The client: one WebSocket that follows a thread and an account's list of threads, each by its revision.

import { EMPTY, UNLISTED, activeAnswer, applyAccount, applyDelta, backoff, fromSnapshot, withEarlier, withProgress } from "./state.js";

export * from "./requests.js";
export * from "./state.js";

const CONNECT_MS = 10_000;
const PROBE_MS = 4_000;
const REPAIR_MS = 5_000;
const STEADY_MS = 5_000;
const REFUSALS = ["forbidden", "thread_not_found", "unauthorized", "gone", "invalid_input"];

/**
 * Follows one thread at a time, and the account's list where asked to, and heals itself: a lost connection is made again,
 * a gap is asked for again.
 *
 * `on.state(state, frame)` with each new state of the thread, `on.listed(list)` with each of the list,
 * `on.present(participants, more)` when it changes who is present, `on.connection({phase, until?})` with phase
 * "connecting", "live" or "waiting", `on.refused(code, message)` when the server will not let us follow the thread, or
 * not any more, after which we stop, and `on.signedOut()` when there is no account whose list we could follow.
 */
export class Feed {
  #on;
  #url;
  #socket = null;
  #target = null;
  #state = EMPTY;
  #presence = null;
  #list = null;
  #changing = 0;
  #mustStartOver = false;
  #attempt = 0;
  #timers = {};
  #liveSince = null;
  #repairSince = null;
  #listRepairSince = null;
  #heartbeat = 25_000;

  constructor(url, on) {
    this.#url = url;
    this.#on = on;
  }

  /** Follow this thread instead of the one before; `keys` are `{anonKey?, shareKey?}`, whatever of them opens it. */
  follow(threadId, keys = {}) {
    if (this.#target?.threadId !== threadId) this.leave();
    this.#target = { threadId, ...keys };
    if (this.#changing) return;
    if (!this.#liveSince) return this.wake();
    this.#on.connection({ phase: "live" });
    this.#subscribe();
  }

  /** Follow no thread; the connection stays only for the list. */
  leave() {
    if (this.#target && this.#liveSince) this.#send({ type: "unsubscribe", threadId: this.#target.threadId });
    this.#drop();
  }

  #drop() {
    this.#target = this.#presence = this.#repairSince = null;
    this.#state = EMPTY;
    this.#mustStartOver = false;
    if (!this.#list) this.#forget();
  }

  /** Follow the list of the account that the browser is signed in to, or not any more. */
  watch(isOn) {
    if (isOn === (this.#list !== null)) return;
    this.#list = isOn ? UNLISTED : null;
    if (this.#changing) return;
    if (this.#liveSince) this.#send({ type: isOn ? "watch" : "unwatch" });
    else if (isOn) this.wake();
  }

  /** Be present in the thread with this state of our own, on every connection to come, too; null leaves. */
  announce(state) {
    const changes = state !== null || this.#presence !== null;
    this.#presence = state;
    if (changes && this.#target && this.#liveSince) this.#send({ type: "presence", threadId: this.#target.threadId, state });
  }

  /**
   * Do what changes who we are to the server, then connect anew as whoever we are by then; what is followed goes on from
   * where it was. What we are refused meanwhile may be ours then, so it is asked for again.
   */
  async as(change) {
    this.#changing++;
    try {
      return await change();
    } finally {
      this.#changing--;
      if (!this.#changing && (this.#target || this.#list)) this.#connect();
    }
  }

  /** Put a page of older messages before what is known; nothing happens if another thread is followed by now. */
  adoptEarlier(threadId, page) {
    if (this.#target?.threadId === threadId) this.#on.state((this.#state = withEarlier(this.#state, page)), null);
  }

  /** Learn from parts how far an answer is, which a snapshot doesn't say. */
  adoptProgress(threadId, messageId, parts) {
    if (this.#target?.threadId === threadId) this.#on.state((this.#state = withProgress(this.#state, messageId, parts)));
  }

  /** The network or the tab has come back: connect at once, or make sure that the connection still lives. */
  wake() {
    if (!this.#target && !this.#list) return;
    if (this.#socket === null || this.#socket.readyState > WebSocket.OPEN) this.#connect();
    else if (this.#liveSince) this.#probe(PROBE_MS);
  }

  #connect() {
    this.#forget();
    this.#on.connection({ phase: "connecting" });
    const socket = new WebSocket(this.#url, "khala.v1");
    this.#socket = socket;
    socket.onmessage = (event) => this.#socket === socket && this.#hear(event.data);
    socket.onclose = (event) => this.#socket === socket && this.#retry(event.code === 1008 ? 4 : 0);
    this.#after("connect", CONNECT_MS, () => this.#retry());
  }

  /** Drop the connection and try again after a while, longer each time unless this one had been steady. */
  #retry(penalty = 0, seconds = 0) {
    const steady = this.#liveSince !== null && performance.now() - this.#liveSince > STEADY_MS;
    this.#attempt = steady ? 0 : this.#attempt + 1 + penalty;
    this.#forget();
    const delay = Math.max(backoff(this.#attempt, Math.random()), seconds * 1000);
    this.#after("retry", delay, () => this.#connect());
    this.#on.connection({ phase: "waiting", until: Date.now() + delay });
  }

  #forget() {
    for (const name of Object.keys(this.#timers)) this.#cancel(name);
    const socket = this.#socket;
    this.#socket = this.#liveSince = this.#repairSince = this.#listRepairSince = null;
    socket?.close();
  }

  #hear(data) {
    this.#cancel("probe");
    this.#after("idle", this.#heartbeat, () => this.#probe(this.#heartbeat));
    const frame = JSON.parse(data);
    if (frame.type === "hello") this.#greet(frame);
    else if (frame.type === "error") this.#trouble(frame);
    else if (frame.type === "account") this.#takeList(frame);
    else if (frame.threadId === this.#target?.threadId) this.#take(frame);
  }

  #greet(frame) {
    this.#cancel("connect");
    if (frame.protocol !== 1) return this.#leaveFor("protocol", "This page is older than the server. Reload it.");
    this.#heartbeat = 1000 * (frame.heartbeatSeconds ?? 25);
    this.#liveSince = performance.now();
    this.#on.connection({ phase: "live" });
    if (this.#target) this.#subscribe();
    if (this.#presence) this.announce(this.#presence);
    if (this.#list) this.#watch(this.#list);
  }

  #subscribe() {
    const { revision } = this.#state;
    const known = revision !== null && !this.#mustStartOver;
    this.#send({ type: "subscribe", ...this.#target, ...(known ? { after: revision } : {}) });
  }

  #watch({ revision }) {
    this.#send({ type: "watch", ...(revision === null ? {} : { after: revision }) });
  }

  #take(frame) {
    if (frame.type === "snapshot") this.#accept(fromSnapshot(frame), frame);
    else if (frame.type === "gone") this.#refuse(frame.code, frame.message);
    else if (frame.type === "presence") this.#on.present(frame.participants, frame.more ?? 0);
    else if (frame.type === "delta" && !this.#mustStartOver) this.#takeDelta(frame);
  }

  #takeDelta(frame) {
    const { state, outcome } = applyDelta(this.#state, frame);
    if (outcome === "applied") this.#accept(state, frame);
    else if (outcome === "gap") this.#repair();
    else if (outcome === "broken") this.#startOver();
  }

  #accept(state, frame) {
    this.#repairSince = null;
    this.#mustStartOver = false;
    this.#state = state;
    this.#on.state(state, frame);
  }

  #takeList(frame) {
    if (!this.#list) return;
    const { list, outcome } = applyAccount(this.#list, frame);
    if (outcome === "gap") return this.#repairList();
    if (outcome === "stale") return;
    this.#listRepairSince = null;
    this.#on.listed((this.#list = list));
  }

  /** As with a thread: ask once for what is missing, and for all of it if that does not help. */
  #repairList() {
    const now = performance.now();
    const since = this.#listRepairSince;
    if (since !== null && now - since < REPAIR_MS) return;
    this.#listRepairSince = now;
    this.#watch(since === null ? this.#list : UNLISTED);
  }

  /** Ask once for what is missing; what still arrives on the old chain is of no use, and a cure that does not come is none. */
  #repair() {
    const now = performance.now();
    if (this.#repairSince === null) this.#subscribe();
    else if (now - this.#repairSince > REPAIR_MS) return this.#startOver();
    this.#repairSince ??= now;
  }

  /** What we hold stays in sight until the snapshot comes. */
  #startOver() {
    this.#mustStartOver = true;
    this.#retry();
  }

  #trouble(frame) {
    if (frame.threadId && frame.threadId !== this.#target?.threadId) return;
    if (!frame.threadId && frame.code === "unauthorized") this.#loseList();
    else if (frame.threadId && REFUSALS.includes(frame.code)) this.#refuse(frame.code, frame.message);
    else if (frame.threadId || frame.code === "unavailable") this.#retry(1, frame.retryAfter ?? 0);
    else console.warn("khala", frame.code, frame.message);
  }

  #loseList() {
    if (this.#changing || !this.#list) return;
    this.#list = null;
    this.#on.signedOut();
  }

  #refuse(code, message) {
    if (!this.#changing) this.#leaveFor(code, message);
  }

  #leaveFor(code, message) {
    if (code === "protocol") this.#list = null;
    this.#drop();
    this.#on.refused(code, message ?? "");
  }

  /**
   * Ask for a sign of life; without one in time the connection counts as lost. A long silence within an answer is also a
   * reason to ask again for what came after our revision: nothing later would reveal that its last frame went missing.
   */
  #probe(patience) {
    if (this.#target && activeAnswer(this.#state)) this.#subscribe();
    this.#send({ type: "ping" });
    this.#after("probe", patience, () => this.#retry());
  }

  #send(frame) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(frame));
  }

  #after(name, milliseconds, act) {
    this.#cancel(name);
    this.#timers[name] = setTimeout(act, milliseconds);
  }

  #cancel(name) {
    clearTimeout(this.#timers[name]);
    delete this.#timers[name];
  }
}
