// A session at one end of a port: a worker's own, or a MessagePort.

import { connect } from "./server.ts";
import { Session, type SessionOptions } from "./session.ts";

/** What of a port a session needs; `self` of a worker is one. */
export interface Port {
  postMessage(message: unknown): void;
  addEventListener(type: "message", listen: (event: MessageEvent) => void): void;
}

/** Answer whatever comes on this port, for as long as it is there. An embedder may give `fetchRepo`. */
export function serve(port: Port, options: Partial<SessionOptions> = {}): Session {
  const session = new Session((message) => port.postMessage(message), { connect, origin: location.origin, ...options });
  port.addEventListener("message", ({ data }) => void session.hear(data));
  return session;
}
