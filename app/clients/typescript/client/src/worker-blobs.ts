// The blobs of a worker's run: large outputs and files that it stores, and those that it may read.

import type { RunSender } from "./worker-sender.ts";
import { bytesOf, MAX_PART_BYTES, storable } from "./worker-text.ts";
import { AgentError, type Args, type Json, type RunBlob, WorkerRequestError } from "./worker-types.ts";

/** Bytes of a stored result that is read as a whole. */
const MAX_RESULT_BYTES = 16 << 20;
const BINARY = "application/octet-stream";
const JSON_TYPE = "application/json";
const TEXT = "text/plain; charset=utf-8";

/** A blob that a run has stored, and that a step may return as its result. It has the fields of the blob. */
export class StoredBlob implements RunBlob {
  readonly blobId: string;
  readonly size: number;
  readonly sha256: string;
  readonly mediaType: string;
  readonly preview?: string;
  readonly name?: string;

  constructor(blob: RunBlob) {
    this.blobId = blob.blobId;
    this.size = blob.size;
    this.sha256 = blob.sha256;
    this.mediaType = blob.mediaType;
    if (blob.preview !== undefined) this.preview = blob.preview;
    if (blob.name !== undefined) this.name = blob.name;
  }
}

/** What a step may return: JSON, bytes, or a blob that the run has stored. */
export type StepResult = Json | Uint8Array | StoredBlob | undefined;

/** Stores and reads the blobs of one run. */
export class RunBlobs {
  readonly #sender: RunSender;

  constructor(sender: RunSender) {
    this.#sender = sender;
  }

  /** Stores a blob of the run. The same content under the same name and type is stored once. Throws `AgentError`. */
  async store(content: BodyInit, mediaType: string, name?: string): Promise<StoredBlob> {
    const query = new URLSearchParams({ epoch: String(this.#sender.epoch), ...(name !== undefined && { name }) });
    const init = { body: content, headers: { "content-type": mediaType } };
    try {
      const response = await this.#sender.fetch("POST", `blobs?${query.toString()}`, init);
      return new StoredBlob((await response.json()) as RunBlob);
    } catch (error) {
      const refused = error instanceof WorkerRequestError && [400, 413].includes(error.status);
      throw refused ? new AgentError(`The output could not be stored: ${error.message}`) : error;
    }
  }

  /** The content of a blob of the thread. */
  async read(blobId: string): Promise<Blob> {
    const path = `blobs/${encodeURIComponent(blobId)}?epoch=${this.#sender.epoch}`;
    return (await this.#sender.fetch("GET", path)).blob();
  }

  /** The fields of a part that have this result: its `output`, or the `blob` that has it. */
  async storeResult(value: StepResult): Promise<{ output?: Json; blob?: StoredBlob }> {
    if (value === undefined || value === null) return {};
    if (value instanceof StoredBlob) return { blob: value };
    if (value instanceof Uint8Array) return value.length ? { blob: await this.#storeWhole(value, BINARY) } : {};
    if (bytesOf(value) <= MAX_PART_BYTES - 1000) return { output: value };
    const [text, type] = typeof value === "string" ? [storable(value), TEXT] : [JSON.stringify(value), JSON_TYPE];
    return { blob: await this.#storeWhole(new TextEncoder().encode(text), type) };
  }

  /** Stores the arguments of a call that are too long for its part. */
  storeArguments(args: Args): Promise<StoredBlob> {
    return this.#storeWhole(new TextEncoder().encode(JSON.stringify(args)), JSON_TYPE);
  }

  /** The value that was stored as this blob: text, JSON or bytes. A file, which has a name, is the blob itself. */
  async load(blob: RunBlob): Promise<StepResult> {
    if (blob.name !== undefined) return new StoredBlob(blob);
    if (blob.size > MAX_RESULT_BYTES) throw new AgentError(`A result of ${blob.size} bytes is too large to be read again.`);
    const content = await this.read(blob.blobId);
    if (blob.mediaType.startsWith("text/")) return content.text();
    if (blob.mediaType === JSON_TYPE) return JSON.parse(await content.text()) as Json;
    return new Uint8Array(await content.arrayBuffer());
  }

  #storeWhole(bytes: Uint8Array, mediaType: string): Promise<StoredBlob> {
    if (bytes.length <= MAX_RESULT_BYTES) return this.store(bytes as Uint8Array<ArrayBuffer>, mediaType);
    const limit = `may have at most ${MAX_RESULT_BYTES}. Store it with storeBlob`;
    return Promise.reject(new AgentError(`The result has ${bytes.length} bytes, and ${limit}.`));
  }
}
