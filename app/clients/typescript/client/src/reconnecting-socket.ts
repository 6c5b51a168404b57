// A WebSocket to the server that reconnects with exponential backoff until it is closed.

import type { ClientFrame, ServerFrame } from "./frames.ts";
import { PROTOCOL, SUBPROTOCOL } from "./frames.ts";
import { backoffMs } from "./requests.ts";
import { Timers } from "./timers.ts";

const CONNECT_TIMEOUT_MS = 10_000;
const PROBE_TIMEOUT_MS = 4_000;
const STABLE_AFTER_MS = 5_000;
const OPEN = 1;
/** Attempts added to the backoff after a close with code 1008, "too many bad frames". */
const BAD_FRAME_PENALTY_ATTEMPTS = 4;

/** The state of the connection. `until` is the time of the next attempt, in ms since the epoch. */
export interface ConnectionState {
  phase: "connecting" | "live" | "waiting";
  until?: number;
}

/** The part of `WebSocket` that is used here. Its handlers get events with `data` and `code`, of whatever class. */
export interface WebSocketLike {
  readonly readyState: number;
  onmessage: ((event: never) => void) | null;
  onclose: ((event: never) => void) | null;
  send(data: string): void;
  close(): void;
}

export type WebSocketConstructor = new (url: string, protocol: string) => WebSocketLike;

export interface RealtimeOptions {
  WebSocket?: WebSocketConstructor;
  /** Returns a number from 0 to 1, for the jitter of the backoff. */
  random?: () => number;
}

/** The class of sockets. Throws `TypeError` where there is none, as in Node 20, and none was given. */
export function webSocketClass({ WebSocket: given }: RealtimeOptions): WebSocketConstructor {
  const found = given ?? (globalThis as { WebSocket?: WebSocketConstructor }).WebSocket;
  if (found === undefined) throw new TypeError("This platform has no WebSocket: pass one as the option WebSocket, such as that of the package ws.");
  return found;
}

export interface SocketListener {
  onConnection: (connection: ConnectionState) => void;
  /** The server has sent `hello`. */
  onOpen: () => void;
  /** The server speaks another protocol version. */
  onProtocolMismatch: () => void;
  /** Receives every frame except `hello`. */
  onFrame: (frame: ServerFrame) => void;
  /** Nothing has arrived for one heartbeat interval, or the connection is being checked; a ping follows. */
  onSilence: () => void;
  /** The connection has ended. Requests that are still open on it get no answer. */
  onClose: () => void;
}

export class ReconnectingSocket {
  readonly #url: string;
  readonly #listener: SocketListener;
  readonly #WebSocket: WebSocketConstructor;
  readonly #random: () => number;
  readonly #timers = new Timers<"connect" | "retry" | "idle" | "probe">();
  #socket: WebSocketLike | null = null;
  #attempt = 0;
  #liveSince: number | null = null;
  #heartbeatMs = 25_000;

  constructor(url: string, listener: SocketListener, options: RealtimeOptions = {}) {
    this.#url = url;
    this.#listener = listener;
    this.#WebSocket = webSocketClass(options);
    this.#random = options.random ?? Math.random;
  }

  get isLive(): boolean {
    return this.#liveSince !== null;
  }

  /** Send a frame; does nothing while the socket is not open. */
  send(frame: ClientFrame): void {
    if (this.#socket?.readyState === OPEN) this.#socket.send(JSON.stringify(frame));
  }

  /** Open a new connection. Replaces the current one. */
  connect(): void {
    this.close();
    this.#listener.onConnection({ phase: "connecting" });
    const socket = new this.#WebSocket(this.#url, SUBPROTOCOL);
    this.#socket = socket;
    socket.onmessage = ({ data }: { readonly data: unknown }) => {
      if (this.#socket === socket) this.#receive(String(data));
    };
    socket.onclose = ({ code }: { readonly code: number }) => {
      if (this.#socket === socket) this.reconnectLater(code === 1008 ? BAD_FRAME_PENALTY_ATTEMPTS : 0);
    };
    this.#timers.after("connect", CONNECT_TIMEOUT_MS, () => this.reconnectLater());
  }

  /** Close the connection and reconnect with exponential backoff. A connection that was stable resets the backoff. */
  reconnectLater(penalty = 0): void {
    const wasStable = this.#liveSince !== null && performance.now() - this.#liveSince > STABLE_AFTER_MS;
    this.#attempt = wasStable ? 0 : this.#attempt + 1 + penalty;
    this.close();
    const delay = backoffMs(this.#attempt, this.#random());
    this.#timers.after("retry", delay, () => this.connect());
    this.#listener.onConnection({ phase: "waiting", until: Date.now() + delay });
  }

  /** Connect at once if there is no connection; otherwise check that the connection still works. */
  checkConnection(): void {
    if (this.#socket === null || this.#socket.readyState > OPEN) this.connect();
    else if (this.isLive) this.#probe(PROBE_TIMEOUT_MS);
  }

  close(): void {
    this.#timers.clear();
    const socket = this.#socket;
    this.#socket = this.#liveSince = null;
    this.#listener.onClose();
    socket?.close();
  }

  #receive(data: string): void {
    this.#timers.cancel("probe");
    this.#timers.after("idle", this.#heartbeatMs, () => this.#probe(this.#heartbeatMs));
    const frame = JSON.parse(data) as ServerFrame;
    if (frame.type !== "hello") return this.#listener.onFrame(frame);
    this.#timers.cancel("connect");
    if (frame.protocol !== PROTOCOL) return this.#listener.onProtocolMismatch();
    this.#heartbeatMs = 1000 * frame.heartbeatSeconds;
    this.#liveSince = performance.now();
    this.#listener.onConnection({ phase: "live" });
    this.#listener.onOpen();
  }

  /** Send a ping. Reconnects if no frame arrives within `timeoutMs`. */
  #probe(timeoutMs: number): void {
    this.#listener.onSilence();
    this.send({ type: "ping" });
    this.#timers.after("probe", timeoutMs, () => this.reconnectLater());
  }
}
