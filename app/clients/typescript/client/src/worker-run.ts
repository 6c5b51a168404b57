// One run of a worker: its question, and what its function writes.

import { type Post, untilAnswered } from "./worker-requests.ts";
import { bytesOf, line, MAX_PART_BYTES, pieces, receiptOf, storable, textOf, unwritten } from "./worker-text.ts";
import {
  AgentError,
  ApprovalDenied,
  type Args,
  type ClaimedRun,
  type ClaimedRunState,
  type DecidedApproval,
  type Json,
  type ModelUsage,
  Released,
  type StepFunction,
  type WorkerBlock,
  type WorkerMessage,
  type WorkerPart,
  WorkerRequestError,
} from "./worker-types.ts";

const MAX_PARTS_PER_APPEND = 200;
const MAX_PENDING_CHARACTERS = 1 << 20;
/** The codes of errors after which nothing can be written to the run. */
const LOST = ["stale_epoch", "run_ended", "run_not_found", "budget_exhausted"];

/**
 * One run. Everything that it writes is stored in order, once, whatever worker, server or connection fails.
 *
 * After a worker was lost, the function is run again from its beginning. Then text that is stored already is not
 * written again, and the results of steps that have ended are returned without running them.
 */
export class AgentContext {
  readonly runId: string;
  readonly threadId: string;
  readonly agent: { readonly name: string; readonly version: number; readonly instructions?: string };
  readonly options: Readonly<Record<string, unknown>>;
  readonly messages: readonly WorkerMessage[];
  readonly takenOver: boolean;
  /** The text that former workers have written. */
  readonly written: string;
  /** Aborted when somebody cancels the run, or when it is lost or given back. */
  readonly signal: AbortSignal;
  readonly epoch: number;
  cancelled: boolean;
  lost = false;
  ending = false;

  readonly #post: Post;
  readonly #flushMs: number;
  readonly #holdMs: number;
  readonly #stop = new AbortController();
  readonly #calls = new Map<string, WorkerBlock>();
  readonly #counts = new Map<string, number>();
  readonly #decisions = new Map<string, DecidedApproval>();
  #decided: () => void = () => undefined;
  #replayed: number;
  #seq: number;
  #receiptSeq: number;
  #skippedReceipts: number;
  #text = "";
  #parts: WorkerPart[] = [];
  #receipts: unknown[] = [];
  #batch: { parts: WorkerPart[]; receipts: unknown[] } | undefined;
  #flushing: Promise<void> | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #first = true;
  #failure: Error | undefined;

  constructor(
    post: Post,
    run: ClaimedRun,
    options: { replay: boolean; flushMs: number; holdMs: number },
  ) {
    this.#post = post;
    this.#flushMs = options.flushMs;
    this.#holdMs = options.holdMs;
    this.runId = run.runId;
    this.threadId = run.threadId;
    this.agent = run.agent;
    this.options = run.options;
    this.messages = run.messages;
    this.takenOver = run.takenOver;
    this.cancelled = run.cancelled;
    this.epoch = run.epoch;
    this.signal = this.#stop.signal;
    this.written = textOf(run.content);
    for (const block of run.content) if (block.toolCallId) this.#calls.set(block.toolCallId, block);
    for (const one of run.approvals) this.#decisions.set(one.toolCallId, one);
    this.#replayed = options.replay ? 0 : this.written.length;
    this.#seq = run.nextSeq;
    this.#receiptSeq = run.nextReceipt ?? 0;
    this.#skippedReceipts = options.replay ? (run.receiptsOutsideCalls ?? this.#receiptSeq) : 0;
  }

  /** The text of the message to answer. */
  get prompt(): string {
    return textOf(this.messages.at(-1)?.content ?? []);
  }

  /** Adds text to the answer. It is sent within the flush interval, the first text at once. */
  async text(text: string): Promise<void> {
    this.#check();
    const fresh = this.#notReplayed(storable(text));
    if (!fresh) return;
    this.#text += fresh;
    this.#schedule(this.#first ? 0 : this.#flushMs);
    this.#first = false;
    if (this.#text.length > MAX_PENDING_CHARACTERS) await this.flush();
  }

  /** Reports one model call, which counts against the budgets. A step reports its own calls by its argument. */
  usage(usage: ModelUsage): void {
    if (this.#skippedReceipts > 0) this.#skippedReceipts--;
    else this.#receipts.push(receiptOf(usage));
  }

  /** Runs the function once and returns its result, which is stored: JSON of at most 3,900 bytes. */
  step<T extends Json>(name: string, run: StepFunction<T>): Promise<T> {
    return this.tool(name, {}, run);
  }

  /** As `step`, for a call that readers see with its arguments. With `approve`, a person decides first. */
  async tool<T extends Json>(
    name: string,
    args: Args,
    run: StepFunction<T>,
    options: { approve?: boolean } = {},
  ): Promise<T> {
    this.#check();
    const id = this.#callId(name);
    const before = this.#calls.get(id);
    if (before?.state === "completed") return before.output as T;
    if (before?.state === "failed" || before?.state === "cancelled") {
      const decision = this.#decisions.get(id);
      if (decision && decision.state !== "approved") throw new ApprovalDenied(before.summary ?? `${name} was denied.`, decision.state);
      throw new AgentError(before.summary ?? `${name} failed.`);
    }
    if (!before) this.#append("tool-call", { toolCallId: id, step: 1, tool: name, args });
    if (options.approve && before?.state !== "running") await this.#approval(id, before?.state === "blocked");
    this.#append("tool-status", { toolCallId: id, state: "running" });
    await this.flush();
    return this.#runCall(id, name, run);
  }

  /** Has a person decide about a call. Returns the arguments, perhaps changed. Throws `ApprovalDenied`. */
  approve(name: string, args: Args): Promise<Args> {
    const id = `${name}-${(this.#counts.get(name) ?? 0) + 1}`;
    return this.tool(name, args, () => this.#decisions.get(id)?.editedArgs ?? args, { approve: true });
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

  /** Ends the run. A worker calls it when the function has returned. */
  async finish(status: "completed" | "failed" | "cancelled", error?: AgentError): Promise<void> {
    await this.flush();
    this.ending = true;
    const receipts = { receiptSeq: this.#receiptSeq, receipts: this.#receipts };
    const failure = error ? { error: { code: error.code, message: error.message.slice(0, 1000) || "Failed." } } : {};
    await this.#request("finish", { seq: this.#seq, status, ...failure, ...receipts });
  }

  /** Gives the run back. */
  async release(awaits: string[] = []): Promise<void> {
    await this.flush();
    await this.#request("release", { awaits });
  }

  /** Receives what a heartbeat says about the run. */
  receive(state: ClaimedRunState): void {
    for (const one of state.approvals) this.#decisions.set(one.toolCallId, one);
    this.#decided();
    if (!state.held) this.lost = true;
    if (state.cancelled) this.cancelled = true;
    if (this.lost || this.cancelled) this.abort();
  }

  /** Ends the function: what it awaits of the context throws. */
  abort(): void {
    this.#stop.abort();
    this.#decided();
  }

  /** Forgets what the server has refused, so that the run can be ended. */
  dropPending(): void {
    this.#text = "";
    this.#parts = [];
    this.#receipts = [];
    this.#batch = undefined;
    this.#failure = undefined;
  }

  #check(): void {
    if (this.#failure) throw this.#failure;
    this.signal.throwIfAborted();
  }

  #notReplayed(text: string): string {
    const fresh = unwritten(text, this.written, this.#replayed);
    this.#replayed += text.length - fresh.length;
    return fresh;
  }

  #callId(name: string): string {
    const number = (this.#counts.get(name) ?? 0) + 1;
    this.#counts.set(name, number);
    return `${name}-${number}`;
  }

  async #approval(id: string, asked: boolean): Promise<void> {
    await this.flush();
    if (!asked) await this.#ask(id);
    const until = Date.now() + this.#holdMs;
    while (!this.#decisions.has(id) && Date.now() < until && !this.signal.aborted) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, until - Date.now());
        this.#decided = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    this.#check();
    const decision = this.#decisions.get(id);
    if (!decision) {
      await this.release([id]);
      throw new Released();
    }
    if (decision.state !== "approved") {
      const message = `${decision.state}${decision.reason ? `: ${decision.reason}` : "."}`;
      this.#append("tool-result", { toolCallId: id, ok: false, summary: line(message), durationMs: 0 });
      throw new ApprovalDenied(message, decision.state);
    }
  }

  /** Requests the approval. It waits for parts that are being sent, because both requests count the parts. */
  async #ask(id: string): Promise<void> {
    while (this.#flushing) await this.#flushing;
    const answered = this.#request("approvals", { seq: this.#seq, toolCallId: id }).then((answer) => {
      this.#seq = (answer as { nextSeq: number }).nextSeq;
    });
    await (this.#flushing = answered.finally(() => (this.#flushing = undefined)));
  }

  async #runCall<T extends Json>(id: string, name: string, run: StepFunction<T>): Promise<T> {
    const began = Date.now();
    const result = (ok: boolean, summary: string, output?: Json) => ({
      toolCallId: id,
      ok,
      summary: line(summary),
      durationMs: Date.now() - began,
      ...(output === undefined || output === null ? {} : { output }),
    });
    let value: T;
    try {
      value = await run({ usage: (usage) => this.#receipts.push(receiptOf(usage, id)) });
    } catch (error) {
      this.#append("tool-result", result(false, `${name} failed: ${String(error)}`));
      throw error;
    }
    const data = result(true, "done", value);
    if (bytesOf(data) > MAX_PART_BYTES) throw new AgentError(`The result of ${name} is too long.`);
    this.#append("tool-result", data);
    await this.flush();
    return value;
  }

  #append(kind: string, data: Record<string, unknown>): void {
    this.#takeText();
    this.#parts.push({ kind, data });
    this.#schedule(0);
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
        this.#failure = error instanceof Error ? error : new Error(String(error));
        this.abort();
      });
    }, ms);
  }

  async #send(): Promise<void> {
    if (!this.#batch) {
      this.#takeText();
      this.#batch = { parts: this.#parts.splice(0, MAX_PARTS_PER_APPEND), receipts: this.#receipts.splice(0, 64) };
    }
    const batch = this.#batch;
    await this.#request("parts", { seq: this.#seq, receiptSeq: this.#receiptSeq, ...batch });
    this.#batch = undefined;
    this.#seq += batch.parts.length;
    this.#receiptSeq += batch.receipts.length;
  }

  async #request(action: string, body: Record<string, unknown>): Promise<unknown> {
    const send = (): Promise<unknown> => this.#post(`runs/${this.runId}/${action}`, { epoch: this.epoch, ...body });
    try {
      return await untilAnswered(send, () => this.lost);
    } catch (error) {
      if (error instanceof WorkerRequestError && LOST.includes(error.code)) this.lost = true;
      throw error;
    }
  }
}
