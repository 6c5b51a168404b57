// The page's side of the stream worker. It applies one batch per animation frame and acknowledges it, so batches don't pile up.

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

  /** `applyBatch` shows the changes. Changes of a thread that was left are removed before. */
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

  /** Without a refusal that answers an earlier attempt with other keys. */
  #withoutOldRefusal({ refusal, ...rest }: Batch): Batch {
    return { ...rest, ...(refusal?.attempt === this.#attempt && { refusal }) };
  }

  post(message: ToStream): void {
    this.#port?.postMessage(message);
  }

  /** Leave the current thread. Its pending changes are not shown. */
  leave(): void {
    this.post({ type: "leave", generation: ++this.#generation });
  }

  /** Follow this thread. Calling it again for the same thread replaces the keys. */
  follow(threadId: string, keys: Extract<ToStream, { type: "follow" }>["keys"], who: string | null): void {
    this.post({ type: "follow", generation: this.#generation, attempt: ++this.#attempt, threadId, keys, who });
  }

  /** Run a change of the identity, then reconnect. */
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

/** Call `act` in the next animation frame, or a little later in a hidden tab. */
function onNextFrame(act: () => void): void {
  const once = () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    act();
  };
  const frame = requestAnimationFrame(once);
  const timer = setTimeout(once, HIDDEN_TAB_DELAY_MS);
}
