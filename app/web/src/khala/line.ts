// The line: one WebSocket to the server that is made again whenever it is lost, until it is hung up.

import type { ClientFrame, ServerFrame } from "./frames.ts";
import { PROTOCOL, SUBPROTOCOL } from "./frames.ts";
import { backoff } from "./requests.ts";
import { Timers } from "./timers.ts";

const CONNECT_MS = 10_000;
const PROBE_MS = 4_000;
const STEADY_MS = 5_000;
const OPEN = 1;
/** What a close with 1008, "too many bad frames", adds to the attempts that were made. */
const PENALTY = 4;

/** How the connection stands; `until` is the time (ms) of the next try. */
export interface FeedConnection {
  phase: "connecting" | "live" | "waiting";
  until?: number;
}

/** What of a WebSocket a line needs. */
export interface Socket {
  readonly readyState: number;
  onmessage: ((event: MessageEvent) => void) | null;
  onclose: ((event: CloseEvent) => void) | null;
  send(data: string): void;
  close(): void;
}

export interface LineOptions {
  WebSocket?: new (url: string, protocol: string) => Socket;
  /** From 0 to 1, for the jitter of pauses. */
  random?: () => number;
}

export interface LineListener {
  connection: (connection: FeedConnection) => void;
  /** The server has said hello. */
  live: () => void;
  /** It speaks a protocol that we don't. */
  stranger: () => void;
  /** Any frame but hello. */
  frame: (frame: ServerFrame) => void;
  /** Nothing was heard for a while; the server is asked for a sign of life. */
  quiet: () => void;
  /** What was asked for over the connection will not be answered any more. */
  lost: () => void;
}

export class Line {
  readonly #url: string;
  readonly #on: LineListener;
  readonly #WebSocket: new (url: string, protocol: string) => Socket;
  readonly #random: () => number;
  readonly #timers = new Timers<"connect" | "retry" | "idle" | "probe">();
  #socket: Socket | null = null;
  #attempt = 0;
  #liveSince: number | null = null;
  #heartbeat = 25_000;

  constructor(url: string, on: LineListener, options: LineOptions = {}) {
    this.#url = url;
    this.#on = on;
    this.#WebSocket = options.WebSocket ?? WebSocket;
    this.#random = options.random ?? Math.random;
  }

  get isLive(): boolean {
    return this.#liveSince !== null;
  }

  /** Say something, if there is somebody to hear it. */
  send(frame: ClientFrame): void {
    if (this.#socket?.readyState === OPEN) this.#socket.send(JSON.stringify(frame));
  }

  /** Connect anew, whatever there was before. */
  connect(): void {
    this.hangUp();
    this.#on.connection({ phase: "connecting" });
    const socket = new this.#WebSocket(this.#url, SUBPROTOCOL);
    this.#socket = socket;
    socket.onmessage = ({ data }) => {
      if (this.#socket === socket) this.#hear(String(data));
    };
    socket.onclose = ({ code }) => {
      if (this.#socket === socket) this.retry(code === 1008 ? PENALTY : 0);
    };
    this.#timers.after("connect", CONNECT_MS, () => this.retry());
  }

  /** Drop the connection and try again after a while, longer each time unless this one had been steady. */
  retry(penalty = 0): void {
    const steady = this.#liveSince !== null && performance.now() - this.#liveSince > STEADY_MS;
    this.#attempt = steady ? 0 : this.#attempt + 1 + penalty;
    this.hangUp();
    const delay = backoff(this.#attempt, this.#random());
    this.#timers.after("retry", delay, () => this.connect());
    this.#on.connection({ phase: "waiting", until: Date.now() + delay });
  }

  /** Connect at once, or make sure that the connection still lives. */
  wake(): void {
    if (this.#socket === null || this.#socket.readyState > OPEN) this.connect();
    else if (this.isLive) this.#probe(PROBE_MS);
  }

  hangUp(): void {
    this.#timers.clear();
    const socket = this.#socket;
    this.#socket = this.#liveSince = null;
    this.#on.lost();
    socket?.close();
  }

  #hear(data: string): void {
    this.#timers.cancel("probe");
    this.#timers.after("idle", this.#heartbeat, () => this.#probe(this.#heartbeat));
    const frame = JSON.parse(data) as ServerFrame;
    if (frame.type !== "hello") return this.#on.frame(frame);
    this.#timers.cancel("connect");
    if (frame.protocol !== PROTOCOL) return this.#on.stranger();
    this.#heartbeat = 1000 * frame.heartbeatSeconds;
    this.#liveSince = performance.now();
    this.#on.connection({ phase: "live" });
    this.#on.live();
  }

  /** Ask for a sign of life; without one in time the connection counts as lost. */
  #probe(patience: number): void {
    this.#on.quiet();
    this.send({ type: "ping" });
    this.#timers.after("probe", patience, () => this.retry());
  }
}
