// Sends what a worker's function writes to its run: in order, once, whatever server or connection fails.

import { type ExecutorRequests, untilAnswered } from "./worker-requests.ts";
import { pieces } from "./worker-text.ts";
import { type AgentError, type ClaimedRun, type WorkerPart, WorkerRequestError } from "./worker-types.ts";

const MAX_PARTS_PER_APPEND = 200;
const MAX_RECEIPTS_PER_APPEND = 64;
const MAX_PENDING_CHARACTERS = 1 << 20;
/** The codes of errors after which nothing can be written to the run. */
const LOST = ["stale_epoch", "run_ended", "run_not_found", "budget_exhausted"];

/** What one run has to send. Each request is repeated until it is answered, because a repetition changes nothing. */
export class RunSender {
  readonly epoch: number;
  /** Whether nothing can be written to the run any more. */
  lost = false;
  /** Whether the end is being sent. */
  ending = false;
  /** Why the pending parts could not be sent. */
  failure: Error | undefined;

  readonly #requests: ExecutorRequests;
  readonly #path: string;
  readonly #flushMs: number;
  readonly #onFailure: () => void;
  #seq: number;
  #receiptSeq: number;
  #text = "";
  #parts: WorkerPart[] = [];
  #receipts: unknown[] = [];
  #batch: { parts: WorkerPart[]; receipts: unknown[] } | undefined;
  #flushing: Promise<void> | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #first = true;

  constructor(requests: ExecutorRequests, run: ClaimedRun, flushMs: number, onFailure: () => void) {
    this.#requests = requests;
    this.#path = `runs/${run.runId}`;
    this.#flushMs = flushMs;
    this.#onFailure = onFailure;
    this.epoch = run.epoch;
    this.#seq = run.nextSeq;
    this.#receiptSeq = run.nextReceipt ?? 0;
  }

  /** Adds text, which is sent within the flush interval, the first text at once. */
  async addText(text: string): Promise<void> {
    this.#text += text;
    this.#schedule(this.#first ? 0 : this.#flushMs);
    this.#first = false;
    if (this.#text.length > MAX_PENDING_CHARACTERS) await this.flush();
  }

  /** Adds a part, which is sent at once. */
  addPart(kind: string, data: Record<string, unknown>): void {
    this.#takeText();
    this.#parts.push({ kind, data });
    this.#schedule(0);
  }

  /** Adds the receipt of a model call, which is sent with the next parts. */
  addReceipt(receipt: unknown): void {
    this.#receipts.push(receipt);
  }

  /** Sends everything that was added, and returns when it is stored. */
  async flush(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    while (this.#flushing ?? this.#hasPending()) {
      this.#flushing ??= this.#send().finally(() => {
        this.#flushing = undefined;
      });
      await this.#flushing;
    }
  }

  /** Has a person decide about this call. It waits for parts that are being sent: both requests count the parts. */
  async ask(toolCallId: string): Promise<void> {
    await this.flush();
    while (this.#flushing) await this.#flushing;
    const answered = this.#post("approvals", { seq: this.#seq, toolCallId }).then((answer) => {
      this.#seq = (answer as { nextSeq: number }).nextSeq;
    });
    await (this.#flushing = answered.finally(() => (this.#flushing = undefined)));
  }

  /** Ends the run. A worker calls it when the function has returned. */
  async finish(status: "completed" | "failed" | "cancelled", error?: AgentError): Promise<void> {
    await this.flush();
    this.ending = true;
    const receipts = { receiptSeq: this.#receiptSeq, receipts: this.#receipts };
    const failure = error ? { error: { code: error.code, message: error.message.slice(0, 1000) || "Failed." } } : {};
    await this.#post("finish", { seq: this.#seq, status, ...failure, ...receipts });
  }

  /** Gives the run back: to the queue, or until one of these calls is decided. */
  async release(awaits: string[] = []): Promise<void> {
    await this.flush();
    await this.#post("release", { awaits });
  }

  /** Forgets what the server has refused, so that the run can be ended. */
  dropPending(): void {
    this.#text = "";
    this.#parts = [];
    this.#receipts = [];
    this.#batch = undefined;
    this.failure = undefined;
  }

  /** Sends a request about the run with other content than JSON, until there is an answer. `path` follows the run's. */
  fetch(method: string, path: string, init: RequestInit = {}): Promise<Response> {
    return this.#untilAnswered(() => this.#requests.fetch(method, `${this.#path}/${path}`, init));
  }

  #takeText(): void {
    for (const text of pieces(this.#text)) this.#parts.push({ kind: "text-delta", data: { text } });
    this.#text = "";
  }

  #hasPending(): boolean {
    return this.#text !== "" || this.#parts.length > 0 || this.#batch !== undefined;
  }

  #schedule(ms: number): void {
    if (this.#timer !== undefined && ms > 0) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.flush().catch((error: unknown) => {
        this.failure = error instanceof Error ? error : new Error(String(error));
        this.#onFailure();
      });
    }, ms);
  }

  async #send(): Promise<void> {
    if (!this.#batch) {
      this.#takeText();
      const parts = this.#parts.splice(0, MAX_PARTS_PER_APPEND);
      this.#batch = { parts, receipts: this.#receipts.splice(0, MAX_RECEIPTS_PER_APPEND) };
    }
    const batch = this.#batch;
    await this.#post("parts", { seq: this.#seq, receiptSeq: this.#receiptSeq, ...batch });
    this.#batch = undefined;
    this.#seq += batch.parts.length;
    this.#receiptSeq += batch.receipts.length;
  }

  #post(action: string, body: Record<string, unknown>): Promise<unknown> {
    return this.#untilAnswered(() => this.#requests.post(`${this.#path}/${action}`, { epoch: this.epoch, ...body }));
  }

  async #untilAnswered<T>(send: () => Promise<T>): Promise<T> {
    try {
      return await untilAnswered(send, () => this.lost);
    } catch (error) {
      if (error instanceof WorkerRequestError && LOST.includes(error.code)) this.lost = true;
      throw error;
    }
  }
}
