// A worker: executes the runs of remote agents that it names, with functions of the program. It needs `fetch` only.

const WAIT_SECONDS = 20;
const RETRY_MS = 500;
const MAX_RETRY_MS = 5000;
const HEARTBEATS_PER_LEASE = 4;
const MAX_PART_BYTES = 4000;
const MAX_PARTS_PER_APPEND = 200;
const MAX_PENDING_CHARACTERS = 1 << 20;
const MAX_SUMMARY_CHARACTERS = 120;
const REQUEST_TIMEOUT_MS = 35_000;
/** The codes of errors after which nothing can be written to the run. */
const LOST = ["stale_epoch", "run_ended", "run_not_found", "budget_exhausted"];

type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
type Args = { [name: string]: Json };

interface Part {
  kind: string;
  data: Record<string, unknown>;
}

interface Block {
  type: string;
  text?: string;
  toolCallId?: string;
  state?: string;
  summary?: string;
  output?: Json;
}

/** The decision of a person about a call. */
export interface DecidedApproval {
  readonly toolCallId: string;
  readonly state: "approved" | "denied" | "expired";
  readonly reason?: string;
  readonly editedArgs?: Args;
}

/** A message of the thread. */
export interface WorkerMessage {
  readonly id: string;
  readonly role: string;
  readonly content?: readonly Block[];
}

interface ClaimedRun {
  runId: string;
  threadId: string;
  agent: { name: string; version: number; instructions?: string };
  options: Record<string, unknown>;
  messages: WorkerMessage[];
  epoch: number;
  leaseSeconds: number;
  nextSeq: number;
  nextReceipt?: number;
  content: Block[];
  approvals: DecidedApproval[];
  takenOver: boolean;
  cancelled: boolean;
}

interface RunState {
  runId: string;
  epoch: number;
  held: boolean;
  cancelled: boolean;
  approvals: DecidedApproval[];
}

/** An error that the server answered. `code` is stable. */
export class WorkerRequestError extends Error {
  constructor(
    message: string,
    readonly code: string,
    readonly status: number,
  ) {
    super(message);
  }

  /** Whether the same request may succeed a little later. */
  get isTransient(): boolean {
    return this.status === 0 || this.status === 408 || this.status >= 500 || this.code === "rate_limited";
  }
}

/** An agent throws it to end its run with this message, which people see. */
export class AgentError extends Error {
  constructor(
    message: string,
    readonly code: string = "failed",
  ) {
    super(message);
  }
}

/** A person has denied the call, or nobody has approved it in time. */
export class ApprovalDenied extends AgentError {}

/** The run was given back: the function is run again later. Functions must not catch it. */
class Released extends Error {}

/** The usage of one model call. Without `costUsd` (a decimal string), the server uses its price list. */
export interface ModelUsage {
  inputTokens?: number;
  outputTokens?: number;
  provider?: string;
  model?: string;
  costUsd?: string;
  milliseconds?: number;
}

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

  readonly #post: (path: string, body: unknown, signal?: AbortSignal) => Promise<unknown>;
  readonly #flushMs: number;
  readonly #holdMs: number;
  readonly #stop = new AbortController();
  readonly #calls = new Map<string, Block>();
  readonly #counts = new Map<string, number>();
  readonly #decisions = new Map<string, DecidedApproval>();
  #decided: () => void = () => undefined;
  #replayed: number;
  #seq: number;
  #receiptSeq: number;
  #skippedReceipts: number;
  #text = "";
  #parts: Part[] = [];
  #receipts: unknown[] = [];
  #batch: { parts: Part[]; receipts: unknown[] } | undefined;
  #flushing: Promise<void> | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #first = true;
  #failure: unknown;

  constructor(
    post: (path: string, body: unknown, signal?: AbortSignal) => Promise<unknown>,
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
    this.written = run.content.map((block) => (block.type === "text" ? (block.text ?? "") : "")).join("");
    for (const block of run.content) if (block.toolCallId) this.#calls.set(block.toolCallId, block);
    for (const one of run.approvals) this.#decisions.set(one.toolCallId, one);
    this.#replayed = options.replay ? 0 : this.written.length;
    this.#seq = run.nextSeq;
    this.#receiptSeq = run.nextReceipt ?? 0;
    this.#skippedReceipts = options.replay ? this.#receiptSeq : 0;
  }

  /** The text of the message to answer. */
  get prompt(): string {
    const blocks = this.messages.at(-1)?.content ?? [];
    return blocks.map((block) => (block.type === "text" ? (block.text ?? "") : "")).join("");
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

  /** Reports one model call, which counts against the budgets. */
  usage(usage: ModelUsage): void {
    if (this.#skippedReceipts > 0) {
      this.#skippedReceipts--;
      return;
    }
    const { inputTokens = 0, outputTokens = 0, milliseconds = 0, ...more } = usage;
    this.#receipts.push({ type: "model", usage: { inputTokens, outputTokens }, totalMs: milliseconds, ...more });
  }

  /** Runs the function once and returns its result, which is stored: JSON of at most 3,900 bytes. */
  step<T extends Json>(name: string, run: () => Promise<T> | T): Promise<T> {
    return this.tool(name, {}, run);
  }

  /** As `step`, for a call that readers see with its arguments. With `approve`, a person decides first. */
  async tool<T extends Json>(
    name: string,
    args: Args,
    run: () => Promise<T> | T,
    options: { approve?: boolean } = {},
  ): Promise<T> {
    this.#check();
    const id = this.#callId(name);
    const before = this.#calls.get(id);
    if (before?.state === "completed") return before.output as T;
    if (before?.state === "failed" || before?.state === "cancelled") {
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
  receive(state: RunState): void {
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
    const stored = this.written.slice(this.#replayed, this.#replayed + text.length);
    if (!text.startsWith(stored)) {
      throw new AgentError(
        "The answer was interrupted, and could not be continued. Please try again.",
        "replay_diverged",
      );
    }
    this.#replayed += stored.length;
    return text.slice(stored.length);
  }

  #callId(name: string): string {
    const number = (this.#counts.get(name) ?? 0) + 1;
    this.#counts.set(name, number);
    return `${name}-${number}`;
  }

  async #approval(id: string, asked: boolean): Promise<void> {
    await this.flush();
    if (!asked) {
      const answer = (await this.#request("approvals", { seq: this.#seq, toolCallId: id })) as { nextSeq: number };
      this.#seq = answer.nextSeq;
    }
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

  async #runCall<T extends Json>(id: string, name: string, run: () => Promise<T> | T): Promise<T> {
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
      value = await run();
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
        this.#failure = error;
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

  /** Sends a request until there is an answer. It can be repeated, because a repetition changes nothing. */
  async #request(action: string, body: Record<string, unknown>): Promise<unknown> {
    for (let delay = RETRY_MS; ; delay = Math.min(2 * delay, MAX_RETRY_MS)) {
      if (this.lost) throw new WorkerRequestError("Another worker has this run.", "stale_epoch", 409);
      try {
        return await this.#post(`runs/${this.runId}/${action}`, { epoch: this.epoch, ...body });
      } catch (error) {
        if (!(error instanceof WorkerRequestError) || !error.isTransient) {
          if (error instanceof WorkerRequestError && LOST.includes(error.code)) this.lost = true;
          throw error;
        }
      }
      await sleep(delay);
    }
  }
}

/** A function that executes the runs of an agent. */
export type AgentFunction = (run: AgentContext) => Promise<void>;

/** The options of a worker. Times are milliseconds. */
export interface WorkerOptions {
  /** The address of the server, without `/api`. */
  server: string;
  /** A worker's token. */
  token: string;
  concurrency?: number;
  flushMs?: number;
  /** Time that runs have to end after `stop`; then they are given back. */
  graceMs?: number;
  /** Time that a run waits for an approval, before it is given back until there is a decision. */
  holdMs?: number;
  fetch?: typeof globalThis.fetch;
}

/** Claims runs of its agents from a server, and executes up to `concurrency` at once. */
export class Worker {
  readonly #options: Required<WorkerOptions>;
  readonly #agents = new Map<string, { run: AgentFunction; replay: boolean }>();
  readonly #active = new Map<AgentContext, Promise<void>>();
  readonly #stopping = new AbortController();
  #leaseMs = 10_000;
  #wake: () => void = () => undefined;

  constructor(options: WorkerOptions) {
    this.#options = {
      concurrency: 10,
      flushMs: 350,
      graceMs: 20_000,
      holdMs: 60_000,
      fetch: globalThis.fetch,
      ...options,
      server: options.server.replace(/\/+$/, ""),
    };
  }

  /** Registers a function for the runs of this agent. Without `replay`, nothing that is stored is skipped. */
  agent(name: string, run: AgentFunction, options: { replay?: boolean } = {}): void {
    this.#agents.set(name, { run, replay: options.replay ?? true });
  }

  /** Claims no more runs, and lets `run` return when the active ones have ended or are given back. */
  stop(): void {
    this.#stopping.abort();
    this.#wake();
  }

  /** Works until `stop` is called. Throws if the server refuses the token or an agent. */
  async run(): Promise<void> {
    if (!this.#agents.size) throw new Error("Register an agent first.");
    const beat = this.#beats();
    try {
      await this.#claims();
      await Promise.race([Promise.allSettled(this.#active.values()), sleep(this.#options.graceMs, true)]);
      for (const run of this.#active.keys()) run.abort();
      await Promise.allSettled(this.#active.values());
    } finally {
      beat.stop();
      this.stop();
    }
  }

  async #claims(): Promise<void> {
    let claimId = crypto.randomUUID();
    while (!this.#stopping.signal.aborted) {
      const free = this.#options.concurrency - this.#active.size;
      if (free <= 0) {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
        continue;
      }
      const body = { claimId, agents: [...this.#agents.keys()], maxRuns: Math.min(free, 50), waitSeconds: WAIT_SECONDS };
      try {
        const claimed = (await this.#post("claim", body, this.#stopping.signal)) as { runs?: ClaimedRun[] };
        for (const run of claimed.runs ?? []) this.#begin(run);
        claimId = crypto.randomUUID();
      } catch (error) {
        if (this.#stopping.signal.aborted) return;
        if (!(error instanceof WorkerRequestError) || !error.isTransient) throw error;
        await sleep(RETRY_MS);
      }
    }
  }

  #begin(claimed: ClaimedRun): void {
    const agent = this.#agents.get(claimed.agent.name);
    if (!agent) return;
    this.#leaseMs = claimed.leaseSeconds * 1000;
    const { flushMs, holdMs } = this.#options;
    const context = new AgentContext(this.#post, claimed, { replay: agent.replay, flushMs, holdMs });
    const done = this.#execute(agent.run, context).finally(() => {
      this.#active.delete(context);
      this.#wake();
    });
    this.#active.set(context, done);
  }

  async #execute(run: AgentFunction, context: AgentContext): Promise<void> {
    const aborted = new Promise<never>((_, reject) => {
      context.signal.addEventListener("abort", () => reject(new DOMException("The run stops.", "AbortError")));
    });
    try {
      await Promise.race([run(context), aborted]);
      await context.finish("completed");
    } catch (error) {
      if (error instanceof Released || context.lost) return;
      await this.#leave(context, error).catch((failed: unknown) => {
        console.warn(`The run ${context.runId} cannot go on:`, failed);
      });
    }
  }

  /** Ends a run whose function has failed or was cancelled, or gives it back, because the worker stops. */
  async #leave(context: AgentContext, error: unknown): Promise<void> {
    if (context.cancelled) return context.finish("cancelled");
    if (error instanceof AgentError) return context.finish("failed", error);
    const isStopped = this.#stopping.signal.aborted && context.signal.aborted;
    if (isStopped && !(error instanceof WorkerRequestError)) return context.release();
    console.error(`The agent ${context.agent.name} failed:`, error);
    context.dropPending();
    return context.finish("failed", new AgentError("The agent failed. Please try again.", "agent_failed"));
  }

  #beats(): { stop: () => void } {
    let timer: ReturnType<typeof setTimeout>;
    const beat = async (): Promise<void> => {
      const active = [...this.#active.keys()];
      if (active.length) {
        const runs = active.map(({ runId, epoch }) => ({ runId, epoch }));
        try {
          const answer = (await this.#post("heartbeat", { runs })) as { leaseSeconds: number; runs: RunState[] };
          this.#leaseMs = answer.leaseSeconds * 1000;
          for (const state of answer.runs) {
            const run = active.find((one) => one.runId === state.runId && one.epoch === state.epoch);
            if (run && !run.ending) run.receive(state);
          }
        } catch (error) {
          console.warn("A heartbeat failed:", error);
        }
      }
      timer = setTimeout(() => void beat(), this.#leaseMs / HEARTBEATS_PER_LEASE);
    };
    timer = setTimeout(() => void beat(), this.#leaseMs / HEARTBEATS_PER_LEASE / 5);
    return { stop: () => clearTimeout(timer) };
  }

  readonly #post = async (path: string, body: unknown, stop?: AbortSignal): Promise<unknown> => {
    const timeout = AbortSignal.timeout(REQUEST_TIMEOUT_MS);
    let response: Response;
    let text: string;
    try {
      response = await this.#options.fetch(`${this.#options.server}/api/executor/${path}`, {
        method: "POST",
        headers: { authorization: `Bearer ${this.#options.token}`, "content-type": "application/json" },
        body: JSON.stringify(body),
        signal: stop ? AbortSignal.any([stop, timeout]) : timeout,
      });
      text = await response.text();
    } catch (error) {
      throw new WorkerRequestError(`There was no answer: ${String(error)}`, "unavailable", 0);
    }
    const answer = parse(text);
    if (response.ok) return answer;
    const problem = (answer ?? {}) as { code?: string; detail?: string };
    throw new WorkerRequestError(problem.detail ?? `Status ${response.status}`, problem.code ?? "", response.status);
  };
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined; // An error page of a proxy.
  }
}

function sleep(ms: number, unref = false): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms) as { unref?: () => void };
    if (unref) timer.unref?.();
  });
}

function line(text: string): string {
  return text.split(/\s+/).join(" ").slice(0, MAX_SUMMARY_CHARACTERS);
}

function bytesOf(value: unknown): number {
  return new TextEncoder().encode(JSON.stringify(value)).length;
}

/** The text without characters that the server cannot store. */
function storable(text: string): string {
  return text.replace(/\0|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}

/** The text in pieces, each of which fits into a part. A pair of surrogates is not divided. */
function pieces(text: string): string[] {
  const found: string[] = [];
  for (let at = 0; at < text.length; ) {
    let size = Math.min(text.length - at, MAX_PART_BYTES - 32);
    while (bytesOf(text.slice(at, at + size)) > MAX_PART_BYTES - 32) size = Math.floor(size / 2);
    if (size > 1 && at + size < text.length && /[\ud800-\udbff]/.test(text.charAt(at + size - 1))) size--;
    found.push(text.slice(at, at + size));
    at += size;
  }
  return found;
}
