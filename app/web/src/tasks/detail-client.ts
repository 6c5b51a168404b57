// The page's side of the detail worker: requests as promises.

import { ApiError, NetworkError } from "@khala/client";
import type { BlobRef } from "@khala/client";
import type { DetailResult, DetailArgs, RequestFailure, ToDetail, BlobAccessKeys, DetailMethod, FromDetail } from "../workers/detail.messages.ts";

export type { BlobContent, BlobAccessKeys, LineQuery, TreeRows } from "../workers/detail.messages.ts";

/** A pointer or focus that rests on a card for this long prefetches its details. */
export const PREFETCH_DELAY_MS = 150;

type Waiting = { resolve: (answer: never) => void; reject: (error: Error) => void };
/** The part of `Worker` that is used here. */
export type DetailPort = Pick<Worker, "postMessage" | "terminate"> & { onmessage: ((event: MessageEvent<FromDetail>) => void) | null; onerror: ((event: ErrorEvent) => void) | null };

export class DetailClient {
  readonly #createPort: () => DetailPort;
  readonly #pending = new Map<number, Waiting>();
  #port: DetailPort | null = null;
  #lastId = 0;

  /** `start` creates the worker when it is first needed, and after a crash. */
  constructor(start: () => DetailPort) {
    this.#createPort = start;
  }

  /** Send a request about a blob. Rejects with ApiError, NetworkError, or an AbortError once `signal` aborts. */
  request<K extends DetailMethod>(kind: K, blob: BlobRef, keys: BlobAccessKeys, asked: DetailArgs<K>, signal?: AbortSignal): Promise<DetailResult<K>> {
    const id = ++this.#lastId;
    if (signal?.aborted) return Promise.reject(createAbortError());
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { resolve, reject });
      signal?.addEventListener("abort", () => this.#cancel(id), { once: true });
      // The arguments fit the method, which the compiler can't infer from a union.
      this.#send({ type: "request", id, kind, blob: toCloneable(blob), keys: { ...keys }, ...asked } as unknown as ToDetail);
    });
  }

  /** Load blobs into the worker's cache after a short delay. Call the returned function to cancel. */
  prefetch(blobs: readonly BlobRef[], keys: BlobAccessKeys): () => void {
    const abort = new AbortController();
    const timer = setTimeout(() => {
      // Errors are ignored: opening the card sends the request again and shows them.
      for (const blob of blobs) this.request("open", blob, keys, {}, abort.signal).catch(() => undefined);
    }, PREFETCH_DELAY_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }

  #send(message: ToDetail): void {
    this.#port ??= this.#startWorker();
    this.#port.postMessage(message);
  }

  #startWorker(): DetailPort {
    const port = this.#createPort();
    port.onmessage = ({ data }) => this.#receive(data);
    port.onerror = () => this.#handleCrash();
    return port;
  }

  #receive(message: FromDetail): void {
    const waiting = this.#pending.get(message.id);
    this.#pending.delete(message.id);
    if (!waiting) return;
    if ("error" in message) waiting.reject(errorOf(message.error));
    else waiting.resolve(message.result as never);
  }

  #cancel(id: number): void {
    const waiting = this.#pending.get(id);
    this.#pending.delete(id);
    if (!waiting) return;
    waiting.reject(createAbortError());
    this.#send({ type: "abort", id });
  }

  #handleCrash(): void {
    this.#port?.terminate();
    this.#port = null;
    const lost = [...this.#pending.values()];
    this.#pending.clear();
    for (const { reject } of lost) reject(new NetworkError("The detail worker stopped."));
  }
}

export const detailClient = new DetailClient(() => new Worker(new URL("../workers/detail.ts", import.meta.url), { type: "module", name: "detail" }));

/** Without the keys that are undefined. */
export function definedKeys(given: { [Name in keyof BlobAccessKeys]: string | undefined }): BlobAccessKeys {
  return Object.fromEntries(Object.entries(given).filter(([, key]) => key));
}

/** Only the fields that the worker needs, as a cloneable object. */
function toCloneable({ blobId, size, sha256, mediaType, preview }: BlobRef): BlobRef {
  return { blobId, size, sha256, mediaType, ...(preview && { preview: preview.slice(0, 1) }) };
}

function createAbortError(): DOMException {
  return new DOMException("The request was cancelled.", "AbortError");
}

function errorOf({ message, status, code, errors, retryAfter }: RequestFailure): Error {
  if (status === undefined) return new NetworkError(message);
  const problem = { detail: message, ...(code !== undefined && { code }), ...(errors && { errors: [...errors] }) };
  return new ApiError(status, problem, retryAfter ?? null);
}
