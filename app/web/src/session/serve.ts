// Serves a session on a port: a worker's own, or a MessagePort.

import { connect } from "./server.ts";
import { RunSession, type SessionOptions } from "./session.ts";

/** The part of a port that a session needs; `self` of a worker satisfies it. */
export interface Port {
  postMessage(message: unknown): void;
  addEventListener(type: "message", listen: (event: MessageEvent) => void): void;
}

/** Answers every message on the port. An embedder may pass `fetchRepo`. */
export function serve(port: Port, options: Partial<SessionOptions> = {}): RunSession {
  const session = new RunSession((message) => port.postMessage(message), { connect, origin: location.origin, ...options });
  port.addEventListener("message", ({ data }) => void session.receive(data));
  return session;
}
