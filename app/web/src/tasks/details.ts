// What the page asks the detail worker, as promises.

import type { BlobRef } from "../khala/frames.ts";
import { ApiError, NetworkError } from "../khala/requests.ts";
import type { DetailResult, DetailArgs, RequestFailure, ToDetail, BlobAccessKeys, DetailMethod, FromDetail } from "../workers/detail.messages.ts";

export type { BlobContent, BlobAccessKeys, LineQuery, TreeRows } from "../workers/detail.messages.ts";

/** Whoever hovers or rests on a card for so long is about to open it. */
export const PREFETCH_MS = 150;

type Waiting = { resolve: (answer: never) => void; reject: (error: Error) => void };
/** As much of a worker as is needed here. */
export type Port = Pick<Worker, "postMessage" | "terminate"> & { onmessage: ((event: MessageEvent<FromDetail>) => void) | null; onerror: ((event: ErrorEvent) => void) | null };

export class Details {
  readonly #start: () => Port;
  readonly #waiting = new Map<number, Waiting>();
  #port: Port | null = null;
  #last = 0;

  /** `start` makes the worker, when it is first needed and after it has died. */
  constructor(start: () => Port) {
    this.#start = start;
  }

  /** The answer to a question about a blob. Raises Refusal, Unreachable, or AbortError once `signal` aborts. */
  ask<K extends DetailMethod>(kind: K, blob: BlobRef, keys: BlobAccessKeys, asked: DetailArgs<K>, signal?: AbortSignal): Promise<DetailResult<K>> {
    const id = ++this.#last;
    if (signal?.aborted) return Promise.reject(calledOff());
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      signal?.addEventListener("abort", () => this.#abort(id), { once: true });
      // What is asked fits its kind, which the compiler can't tell of a union.
      this.#send({ type: "ask", id, kind, blob: plain(blob), keys: { ...keys }, ...asked } as unknown as ToDetail);
    });
  }

  /** Have a blob at hand soon, if nothing comes in between; call the answer to call it off. */
  prefetch(blobs: readonly BlobRef[], keys: BlobAccessKeys): () => void {
    const abort = new AbortController();
    const timer = setTimeout(() => {
      // Whoever opens the card asks again, and is told what went wrong.
      for (const blob of blobs) this.ask("open", blob, keys, {}, abort.signal).catch(() => undefined);
    }, PREFETCH_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }

  #send(heard: ToDetail): void {
    this.#port ??= this.#started();
    this.#port.postMessage(heard);
  }

  #started(): Port {
    const port = this.#start();
    port.onmessage = ({ data }) => this.#hear(data);
    port.onerror = () => this.#die();
    return port;
  }

  #hear(told: FromDetail): void {
    const waiting = this.#waiting.get(told.id);
    this.#waiting.delete(told.id);
    if (!waiting) return;
    if ("failure" in told) waiting.reject(errorOf(told.failure));
    else waiting.resolve(told.answer as never);
  }

  #abort(id: number): void {
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (!waiting) return;
    waiting.reject(calledOff());
    this.#send({ type: "abort", id });
  }

  #die(): void {
    this.#port?.terminate();
    this.#port = null;
    const lost = [...this.#waiting.values()];
    this.#waiting.clear();
    for (const { reject } of lost) reject(new NetworkError("The detail worker stopped."));
  }
}

export const details = new Details(() => new Worker(new URL("../workers/detail.ts", import.meta.url), { type: "module", name: "detail" }));

/** The keys that there are. */
export function keysFrom(given: { [Name in keyof BlobAccessKeys]: string | undefined }): BlobAccessKeys {
  return Object.fromEntries(Object.entries(given).filter(([, key]) => key));
}

/** Only what the worker needs, in a form that can be sent. */
function plain({ blobId, size, sha256, mediaType, preview }: BlobRef): BlobRef {
  return { blobId, size, sha256, mediaType, ...(preview && { preview: preview.slice(0, 1) }) };
}

function calledOff(): DOMException {
  return new DOMException("The request was cancelled.", "AbortError");
}

function errorOf({ message, status, code, errors, retryAfter }: RequestFailure): Error {
  if (status === undefined) return new NetworkError(message);
  const problem = { detail: message, ...(code !== undefined && { code }), ...(errors && { errors: [...errors] }) };
  return new ApiError(status, problem, retryAfter ?? null);
}
