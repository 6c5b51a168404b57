// The page's end of the stream worker: batches are taken once a frame, and each is answered, so that they never pile up.

import type { Batch, ToStream } from "../workers/stream.messages.ts";

/** Hidden tabs get no animation frames. */
const HIDDEN_TAB_DELAY_MS = 250;

/** The part of `Worker` that is used here. */
export type StreamPort = Pick<Worker, "postMessage"> & { onmessage: ((event: MessageEvent<Batch>) => void) | null };

export class StreamClient {
  #port: StreamPort | null = null;
  readonly #applyBatch: (batch: Batch) => void;
  #generation = 0;
  #attempt = 0;

  /** `take(batch)` shows what has changed; what is of a thread that was left is not in it any more. */
  constructor(take: (batch: Batch) => void) {
    this.#applyBatch = take;
  }

  start(port: StreamPort): void {
    this.#port = port;
    port.onmessage = ({ data }) => onNextFrame(() => this.#receive(data));
  }

  #receive(batch: Batch): void {
    try {
      this.#applyBatch(batch.generation === this.#generation ? this.#withoutOldRefusal(batch) : withoutThread(batch));
    } finally {
      this.post({ type: "taken" });
    }
  }

  /** What was refused to keys that we had before is no refusal any more. */
  #withoutOldRefusal({ refusal, ...rest }: Batch): Batch {
    return { ...rest, ...(refusal?.attempt === this.#attempt && { refusal }) };
  }

  post(message: ToStream): void {
    this.#port?.postMessage(message);
  }

  /** Leave the thread that is followed: what is still to come of it is not shown. */
  leave(): void {
    this.post({ type: "leave", generation: ++this.#generation });
  }

  /** Follow this thread; again, if it is followed already, with other keys. */
  follow(threadId: string, keys: Extract<ToStream, { type: "follow" }>["keys"], who: string | null): void {
    this.post({ type: "follow", generation: this.#generation, attempt: ++this.#attempt, threadId, keys, who });
  }

  /** Do what changes who we are to the server, then connect anew. */
  async changeIdentity<Result>(change: () => Promise<Result>): Promise<Result> {
    this.post({ type: "hold" });
    try {
      return await change();
    } finally {
      this.post({ type: "release" });
    }
  }
}

function withoutThread({ generation, list, connection, signedOut }: Batch): Batch {
  return { generation, ...(list && { list }), ...(connection && { connection }), ...(signedOut && { signedOut }) };
}

/** In the next frame, or a little later where there are none. */
function onNextFrame(act: () => void): void {
  const once = () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    act();
  };
  const frame = requestAnimationFrame(once);
  const timer = setTimeout(once, HIDDEN_TAB_DELAY_MS);
}
