// WebSockets that a test holds the other end of.

import type { ClientFrame, ServerFrame } from "../frames.ts";
import type { Socket } from "../feed.ts";

/** A socket; what the client says is in `heard`. */
export class FakeSocket implements Socket {
  readyState = 0;
  onmessage: ((event: MessageEvent) => void) | null = null;
  onclose: ((event: CloseEvent) => void) | null = null;
  readonly heard: ClientFrame[] = [];
  readonly url: string;
  readonly protocol: string;
  /** Answers what the client says. */
  answer: (frame: ClientFrame) => void = () => undefined;

  constructor(url: string, protocol: string) {
    this.url = url;
    this.protocol = protocol;
  }

  send(data: string): void {
    const frame = JSON.parse(data) as ClientFrame;
    this.heard.push(frame);
    this.answer(frame);
  }

  close(): void {
    this.readyState = 3;
  }

  /** The server says hello. */
  greet(protocol = 1): void {
    this.readyState = 1;
    this.tell({ type: "hello", protocol, heartbeatSeconds: 25 });
  }

  /** The client hears a frame, unless it has hung up. */
  tell(frame: ServerFrame): void {
    if (this.readyState === 1) this.onmessage?.({ data: JSON.stringify(frame) } as MessageEvent);
  }

  /** The connection breaks. */
  drop(code = 1006): void {
    this.readyState = 3;
    this.onclose?.({ code } as CloseEvent);
  }
}

/** A class of sockets, and those that were made of it. */
export function sockets(): { WebSocket: new (url: string, protocol: string) => FakeSocket; made: FakeSocket[]; last: () => FakeSocket } {
  const made: FakeSocket[] = [];
  class Counted extends FakeSocket {
    constructor(url: string, protocol: string) {
      super(url, protocol);
      made.push(this);
    }
  }
  const last = (): FakeSocket => {
    const newest = made.at(-1);
    if (newest === undefined) throw new Error("No connection was made.");
    return newest;
  };
  return { WebSocket: Counted, made, last };
}
