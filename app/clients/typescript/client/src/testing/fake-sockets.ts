// Fake WebSockets whose server side is the test.

import type { ClientFrame, ServerFrame } from "../frames.ts";
import type { WebSocketLike } from "../realtime-client.ts";

/** A fake WebSocket. `received` has the frames that the client sent. */
export class FakeSocket implements WebSocketLike {
  readyState = 0;
  onmessage: ((event: { readonly data: unknown }) => void) | null = null;
  onclose: ((event: { readonly code: number }) => void) | null = null;
  readonly received: ClientFrame[] = [];
  readonly url: string;
  readonly protocol: string;
  /** Called with each frame that the client sends. */
  answer: (frame: ClientFrame) => void = () => undefined;

  constructor(url: string, protocol: string) {
    this.url = url;
    this.protocol = protocol;
  }

  send(data: string): void {
    const frame = JSON.parse(data) as ClientFrame;
    this.received.push(frame);
    this.answer(frame);
  }

  close(): void {
    this.readyState = 3;
  }

  /** Accept the connection and send `hello`. */
  sendHello(protocol = 1): void {
    this.readyState = 1;
    this.deliver({ type: "hello", protocol, heartbeatSeconds: 25 });
  }

  /** Send a frame to the client, unless the socket is closed. */
  deliver(frame: ServerFrame): void {
    if (this.readyState === 1) this.onmessage?.({ data: JSON.stringify(frame) });
  }

  /** Close the connection from the server's side. */
  disconnect(code = 1006): void {
    this.readyState = 3;
    this.onclose?.({ code });
  }
}

/** A fake `WebSocket` class, and the instances that were created from it. */
export function fakeSockets(): { WebSocket: new (url: string, protocol: string) => FakeSocket; made: FakeSocket[]; last: () => FakeSocket } {
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
