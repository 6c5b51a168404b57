// The client: one WebSocket that follows a thread by its revision, and the few REST calls that a page needs.

import { EMPTY, activeAnswer, applyDelta, backoff, fromSnapshot, withEarlier } from "./state.js";

export * from "./state.js";

const CONNECT_MS = 10_000;
const PROBE_MS = 4_000;
const REQUEST_MS = 15_000;
const REPAIR_MS = 5_000;
const STEADY_MS = 5_000;
const REFUSALS = ["forbidden", "thread_not_found", "unauthorized", "gone", "invalid_input"];

/** A new id: a UUID of version 7. Made by hand, because `crypto.randomUUID` is missing on plain-HTTP hosts. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  let now = Date.now();
  for (let index = 5; index >= 0; index--, now = Math.floor(now / 256)) bytes[index] = now % 256;
  bytes[6] = (bytes[6] & 0x0f) | 0x70;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  return hex(bytes).replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

/** A new secret of 256 bits. */
export function newKey() {
  return hex(crypto.getRandomValues(new Uint8Array(32)));
}

function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The server's "no", with its stable `code`; `retryAfter` in seconds where it named one. */
export class Refusal extends Error {
  constructor(status, problem, retryAfter) {
    super(problem.detail ?? problem.title ?? `The server answered ${status}.`);
    this.status = status;
    this.code = problem.code ?? (status >= 500 ? "unavailable" : "unknown");
    this.errors = problem.errors ?? [];
    this.retryAfter = retryAfter;
  }
}

/** The server could not be reached, or did not answer in time. What was asked may have happened all the same. */
export class Unreachable extends Error {}

/** One request to the API: its JSON answer, or a Refusal, or Unreachable. */
export async function call(method, path, { body, key } = {}) {
  const headers = { Accept: "application/json" };
  if (key) headers["X-Anon-Key"] = key;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await answered(path, { method, headers, body: body && JSON.stringify(body) });
  if (response.status === 204) return null;
  const answer = await response.json().catch(() => null);
  if (response.ok && answer !== null) return answer;
  if (response.ok) throw new Unreachable("The answer was cut off.");
  const seconds = Number.parseFloat(response.headers.get("Retry-After") ?? "");
  throw new Refusal(response.status, answer ?? {}, Number.isFinite(seconds) ? seconds : null);
}

async function answered(path, init) {
  try {
    return await fetch(path, { ...init, cache: "no-store", signal: AbortSignal.timeout(REQUEST_MS) });
  } catch (error) {
    throw new Unreachable("The server could not be reached.", { cause: error });
  }
}

/** Whether the same request may succeed a little later. */
export function isPassing(error) {
  return error instanceof Unreachable || (error instanceof Refusal && error.status >= 500);
}

/** Ask until the server says yes or no, at most `tries` times; only for requests that may be repeated safely. */
export async function insist(ask, { tries = 8, wait = pause } = {}) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await ask();
    } catch (error) {
      if (!isPassing(error) || attempt + 1 >= tries) throw error;
      await wait(Math.max(backoff(attempt, Math.random()), 1000 * Math.min(error.retryAfter ?? 0, 30)));
    }
  }
}

/** Wait; a page that has reason to try at once dispatches "khala-wake" on its window. */
export function pause(milliseconds) {
  const done = new AbortController();
  return new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
    addEventListener("khala-wake", resolve, { signal: done.signal });
  }).finally(() => done.abort());
}

/**
 * Follows one thread at a time and heals itself: a lost connection is made again, a gap is asked for again.
 *
 * `on.state(state, frame)` with each new state, `on.connection({phase, until?})` with phase "connecting", "live" or
 * "waiting", `on.refused(code, message)` when the server will not let us follow, after which we stop.
 */
export class Feed {
  #on;
  #url;
  #socket = null;
  #target = null;
  #state = EMPTY;
  #mustStartOver = false;
  #attempt = 0;
  #timers = {};
  #liveSince = null;
  #repairSince = null;
  #heartbeat = 25_000;

  constructor(url, on) {
    this.#url = url;
    this.#on = on;
  }

  get state() {
    return this.#state;
  }

  /** Follow this thread from nothing, instead of the one before. */
  follow(threadId, anonKey) {
    if (this.#target && this.#liveSince) this.#send({ type: "unsubscribe", threadId: this.#target.threadId });
    this.#target = { threadId, anonKey };
    this.#state = EMPTY;
    this.#mustStartOver = false;
    if (this.#liveSince) this.#subscribe();
    else this.wake();
  }

  /** Follow nothing; the connection is closed. */
  stop() {
    this.#target = null;
    this.#state = EMPTY;
    this.#forget();
  }

  /** Put a page of older messages before what is known; nothing happens if another thread is followed by now. */
  adoptEarlier(threadId, page) {
    if (this.#target?.threadId === threadId) this.#on.state((this.#state = withEarlier(this.#state, page)), null);
  }

  /** The network or the tab has come back: connect at once, or make sure that the connection still lives. */
  wake() {
    if (!this.#target) return;
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
    this.#socket = this.#liveSince = this.#repairSince = null;
    socket?.close();
  }

  #hear(data) {
    this.#cancel("probe");
    this.#after("idle", this.#heartbeat, () => this.#probe(this.#heartbeat));
    const frame = JSON.parse(data);
    if (frame.type === "hello") this.#greet(frame);
    else if (frame.type === "error") this.#trouble(frame);
    else if (frame.threadId === this.#target?.threadId) this.#take(frame);
  }

  #greet(frame) {
    this.#cancel("connect");
    if (frame.protocol !== 1) return this.#refuse("protocol", "This page is older than the server. Reload it.");
    this.#heartbeat = 1000 * (frame.heartbeatSeconds ?? 25);
    this.#liveSince = performance.now();
    this.#on.connection({ phase: "live" });
    this.#subscribe();
  }

  #subscribe() {
    const { revision } = this.#state;
    const known = revision !== null && !this.#mustStartOver;
    this.#send({ type: "subscribe", ...this.#target, ...(known ? { after: revision } : {}) });
  }

  #take(frame) {
    if (frame.type === "snapshot") this.#accept(fromSnapshot(frame), frame);
    else if (frame.type === "gone") this.#refuse(frame.code, frame.message);
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
    if (REFUSALS.includes(frame.code)) this.#refuse(frame.code, frame.message);
    else if (frame.threadId || frame.code === "unavailable") this.#retry(1, frame.retryAfter ?? 0);
    else console.warn("khala", frame.code, frame.message);
  }

  #refuse(code, message) {
    this.stop();
    this.#on.refused(code, message ?? "");
  }

  /**
   * Ask for a sign of life; without one in time the connection counts as lost. A long silence within an answer is also a
   * reason to ask again for what came after our revision: nothing later would reveal that its last frame went missing.
   */
  #probe(patience) {
    if (activeAnswer(this.#state)) this.#subscribe();
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
