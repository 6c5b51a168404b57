// The page's end of the stream worker: batches are taken once a frame, and each is answered, so that they never pile up.

import type { Batch, ToStream } from "../workers/stream.messages.ts";

/** Hidden tabs get no animation frames. */
const HIDDEN_MS = 250;

/** The part of `Worker` that is used here. */
export type Port = Pick<Worker, "postMessage"> & { onmessage: ((event: MessageEvent<Batch>) => void) | null };

export class Stream {
  #port: Port | null = null;
  readonly #take: (batch: Batch) => void;
  #turn = 0;
  #asked = 0;

  /** `take(batch)` shows what has changed; what is of a thread that was left is not in it any more. */
  constructor(take: (batch: Batch) => void) {
    this.#take = take;
  }

  start(port: Port): void {
    this.#port = port;
    port.onmessage = ({ data }) => soon(() => this.#show(data));
  }

  #show(batch: Batch): void {
    try {
      this.#take(batch.turn === this.#turn ? this.#timely(batch) : withoutThread(batch));
    } finally {
      this.say({ type: "taken" });
    }
  }

  /** What was refused to keys that we had before is no refusal any more. */
  #timely({ refusal, ...rest }: Batch): Batch {
    return { ...rest, ...(refusal?.asked === this.#asked && { refusal }) };
  }

  say(message: ToStream): void {
    this.#port?.postMessage(message);
  }

  /** Leave the thread that is followed: what is still to come of it is not shown. */
  leave(): void {
    this.say({ type: "leave", turn: ++this.#turn });
  }

  /** Follow this thread; again, if it is followed already, with other keys. */
  follow(threadId: string, keys: Extract<ToStream, { type: "follow" }>["keys"], who: string | null): void {
    this.say({ type: "follow", turn: this.#turn, asked: ++this.#asked, threadId, keys, who });
  }

  /** Do what changes who we are to the server, then connect anew. */
  async as<Result>(change: () => Promise<Result>): Promise<Result> {
    this.say({ type: "hold" });
    try {
      return await change();
    } finally {
      this.say({ type: "release" });
    }
  }
}

function withoutThread({ turn, list, connection, signedOut }: Batch): Batch {
  return { turn, ...(list && { list }), ...(connection && { connection }), ...(signedOut && { signedOut }) };
}

/** In the next frame, or a little later where there are none. */
function soon(act: () => void): void {
  const once = () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    act();
  };
  const frame = requestAnimationFrame(once);
  const timer = setTimeout(once, HIDDEN_MS);
}
