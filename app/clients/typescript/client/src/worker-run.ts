// One run of a worker: its question, and what its function writes.

import { RunBlobs, StoredBlob, type StepResult } from "./worker-blobs.ts";
import type { ExecutorRequests } from "./worker-requests.ts";
import { RunSender } from "./worker-sender.ts";
import { bytesOf, line, MAX_PART_BYTES, receiptOf, storable, textOf, unwritten } from "./worker-text.ts";
import {
  AgentError,
  ApprovalDenied,
  type Args,
  type ClaimedRun,
  type ClaimedRunState,
  type DecidedApproval,
  type ModelUsage,
  Released,
  type RunBlob,
  type StepFunction,
  type WorkerBlock,
  type WorkerMessage,
} from "./worker-types.ts";

const MAX_MESSAGE_CHARACTERS = 400;
const ENDED = ["completed", "failed", "cancelled"];

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
  cancelled: boolean;
  /** What the run has to send. For the worker. */
  readonly sender: RunSender;

  readonly #blobs: RunBlobs;
  readonly #holdMs: number;
  readonly #stop = new AbortController();
  readonly #calls = new Map<string, WorkerBlock>();
  readonly #counts = new Map<string, number>();
  readonly #decisions = new Map<string, DecidedApproval>();
  /** The calls whose functions run, and those that wait for a person. */
  readonly #running = new Set<string>();
  readonly #awaited = new Set<string>();
  #released: Promise<void> | undefined;
  #changed = new EventTarget();
  #replayed: number;
  #skippedReceipts: number;

  constructor(
    requests: ExecutorRequests,
    run: ClaimedRun,
    options: { replay: boolean; flushMs: number; holdMs: number },
  ) {
    this.sender = new RunSender(requests, run, options.flushMs, () => this.abort());
    this.#blobs = new RunBlobs(this.sender);
    this.#holdMs = options.holdMs;
    this.runId = run.runId;
    this.threadId = run.threadId;
    this.agent = run.agent;
    this.options = run.options;
    this.messages = run.messages;
    this.takenOver = run.takenOver;
    this.cancelled = run.cancelled;
    this.signal = this.#stop.signal;
    this.written = textOf(run.content);
    for (const block of run.content) if (block.toolCallId) this.#calls.set(block.toolCallId, block);
    for (const one of run.approvals) this.#decisions.set(one.toolCallId, one);
    this.#replayed = options.replay ? 0 : this.written.length;
    this.#skippedReceipts = options.replay ? (run.receiptsOutsideCalls ?? run.nextReceipt ?? 0) : 0;
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
    await this.sender.addText(fresh);
  }

  /** Reports one model call, which counts against the budgets. A step reports its own calls by its argument. */
  usage(usage: ModelUsage): void {
    if (this.#skippedReceipts > 0) this.#skippedReceipts--;
    else this.sender.addReceipt(receiptOf(usage));
  }

  /** The files of the message to answer: see `readBlob`. */
  get files(): readonly RunBlob[] {
    const content = this.messages.at(-1)?.content ?? [];
    return content.flatMap(({ type, blob }) => (type === "file" && blob ? [blob] : []));
  }

  /**
   * Stores a file of the run, at most 128 MiB. Readers see it when a step returns it: it is the step's result then.
   * The same content under the same name and type is stored once. Throws `AgentError` if the server does not take it.
   */
  async storeBlob(name: string, content: Blob | Uint8Array | string, mediaType?: string): Promise<StoredBlob> {
    this.#check();
    const type = mediaType ?? (content instanceof Blob && content.type !== "" ? content.type : "application/octet-stream");
    const blob = await this.#blobs.store(content as BodyInit, type, name);
    if (blob.name === undefined) throw new AgentError(`${JSON.stringify(name)} is no name of a file.`);
    return blob;
  }

  /** The content of a blob of the thread: a file of a message, or an output of a run. */
  readBlob({ blobId }: Pick<RunBlob, "blobId">): Promise<Blob> {
    this.#check();
    return this.#blobs.read(blobId);
  }

  /**
   * Runs the function once and returns its result, which is stored: JSON or bytes, at most 16 MiB, or a blob that the
   * run has stored. A result over 3,000 bytes, and one of bytes, is stored as a blob.
   */
  step<T extends StepResult>(name: string, run: StepFunction<T>): Promise<T> {
    return this.tool(name, {}, run);
  }

  /** As `step`, for a call that readers see with its arguments. With `approve`, a person decides first. */
  async tool<T extends StepResult>(
    name: string,
    args: Args,
    run: StepFunction<T>,
    options: { approve?: boolean } = {},
  ): Promise<T> {
    this.#check();
    const id = this.#callId(name);
    const before = this.#calls.get(id);
    if (before && ENDED.includes(before.state ?? "")) return (await this.#storedResult(id, name, before)) as T;
    if (!before) await this.#beginCall(id, name, args);
    if (options.approve) await this.#approval(id, before?.state === "blocked" || this.#decisions.has(id));
    if (this.#released) throw new Released();
    this.#running.add(id);
    try {
      return await this.#runCall(id, name, run);
    } finally {
      this.#running.delete(id);
      this.#notify();
    }
  }

  /** Has a person decide about a call. Returns the arguments, perhaps changed. Throws `ApprovalDenied`. */
  approve(name: string, args: Args): Promise<Args> {
    const id = `${name}-${(this.#counts.get(name) ?? 0) + 1}`;
    return this.tool(name, args, () => this.#decisions.get(id)?.editedArgs ?? args, { approve: true });
  }

  /** Sends everything that was added, and returns when it is stored. */
  flush(): Promise<void> {
    return this.sender.flush();
  }

  /** Receives what a heartbeat says about the run. */
  receive(state: ClaimedRunState): void {
    for (const one of state.approvals) this.#decisions.set(one.toolCallId, one);
    this.#notify();
    if (!state.held) this.sender.lost = true;
    if (state.cancelled) this.cancelled = true;
    if (this.sender.lost || this.cancelled) this.abort();
  }

  /** Ends the function: what it awaits of the context throws. */
  abort(): void {
    this.#stop.abort();
    this.#notify();
  }

  #check(): void {
    if (this.sender.failure) throw this.sender.failure;
    this.signal.throwIfAborted();
  }

  /** Wakes what waits for a decision, or for the end of another call. */
  #notify(): void {
    this.#changed.dispatchEvent(new Event("change"));
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

  async #beginCall(id: string, name: string, args: Args): Promise<void> {
    const data = { toolCallId: id, step: 1, tool: name };
    const isShort = bytesOf({ ...data, args }) <= MAX_PART_BYTES;
    this.sender.addPart("tool-call", { ...data, ...(isShort ? { args } : { argsBlob: await this.#blobs.storeArguments(args) }) });
  }

  /** The result of a call that has ended. Throws the error of one that has failed. */
  async #storedResult(id: string, name: string, block: WorkerBlock): Promise<StepResult> {
    if (block.state === "completed") return block.blob ? this.#blobs.load(block.blob) : block.output;
    const decision = this.#decisions.get(id);
    const message = typeof block.output === "string" ? block.output : block.summary;
    if (decision && decision.state !== "approved") throw new ApprovalDenied(message ?? `${name} was denied.`, decision.state);
    throw new AgentError(message ?? `${name} failed.`);
  }

  async #approval(id: string, asked: boolean): Promise<void> {
    this.#awaited.add(id);
    if (asked) await this.flush();
    else await this.sender.ask(id);
    const decision = await this.#decision(id);
    this.#awaited.delete(id);
    if (decision.state !== "approved") {
      const message = `${decision.state}${decision.reason ? `: ${decision.reason}` : "."}`;
      this.sender.addPart("tool-result", this.#failed(id, message, message, 0));
      throw new ApprovalDenied(message, decision.state);
    }
  }

  /** The decision about a call. After the hold time, the run is given back once no other function runs. */
  async #decision(id: string): Promise<DecidedApproval> {
    const until = Date.now() + this.#holdMs;
    for (;;) {
      this.#check();
      const decision = this.#decisions.get(id);
      if (decision) return decision;
      const isAlone = this.#running.size === 0;
      if (isAlone && Date.now() >= until) {
        await (this.#released ??= this.sender.release([...this.#awaited].sort()));
        throw new Released();
      }
      await this.#change(isAlone ? until - Date.now() : undefined);
    }
  }

  /** Waits for a change, for this time at most. */
  #change(ms?: number): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        clearTimeout(timer);
        this.#changed.removeEventListener("change", wake);
        resolve();
      };
      const timer = ms === undefined ? undefined : setTimeout(wake, ms);
      this.#changed.addEventListener("change", wake);
    });
  }

  async #runCall<T extends StepResult>(id: string, name: string, run: StepFunction<T>): Promise<T> {
    this.sender.addPart("tool-status", { toolCallId: id, state: "running" });
    await this.flush();
    const began = Date.now();
    let value: T;
    try {
      value = await run({ usage: (usage) => this.sender.addReceipt(receiptOf(usage, id)) });
      const stored = await this.#blobs.storeResult(value);
      const result = { toolCallId: id, ok: true, summary: "done", durationMs: Date.now() - began, ...stored };
      this.sender.addPart("tool-result", result);
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      this.sender.addPart("tool-result", this.#failed(id, `${name} failed: ${String(error)}`, message, Date.now() - began));
      throw error;
    }
    await this.flush();
    return value;
  }

  /** The result of a call that failed. Its output is the whole message. */
  #failed(toolCallId: string, summary: string, message: string, durationMs: number): Record<string, unknown> {
    const output = storable(message).slice(0, MAX_MESSAGE_CHARACTERS);
    return { toolCallId, ok: false, summary: line(summary), durationMs, output };
  }
}
