// A worker: executes the runs of remote agents that it names, with functions of the program. It needs `fetch` only.

import { credentialProblem } from "./requests.ts";
import { type ExecutorRequests, requestsTo, sleep } from "./worker-requests.ts";
import { AgentContext } from "./worker-run.ts";
import { ConnectionLog } from "./worker-log.ts";
import { AgentError, type ClaimedRun, type ClaimedRunState, Released, WorkerRequestError } from "./worker-types.ts";

export { AgentContext } from "./worker-run.ts";
export { StoredBlob, type StepResult } from "./worker-blobs.ts";
export { AgentError, ApprovalDenied, type DecidedApproval, type ModelUsage, type RunBlob, type RunningStep, type WorkerMessage, WorkerRequestError } from "./worker-types.ts";

const WAIT_SECONDS = 20;
/** The same before the worker knows that it is connected, so that it can say so soon. */
const FIRST_WAIT_SECONDS = 1;
const HEARTBEATS_PER_LEASE = 4;
const STOP_SIGNALS = ["SIGTERM", "SIGINT"] as const;

/** What `serve` uses of Node's `process`. */
interface NodeProcess {
  exitCode?: number | undefined;
  on(signal: string, listener: () => void): unknown;
  off(signal: string, listener: () => void): unknown;
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
  /** Gets a line when the worker is connected, when its connection fails, and when `serve` gives up; by default `console.warn`. */
  log?: (line: string) => void;
}

/** Claims runs of its agents from a server, and executes up to `concurrency` at once. */
export class Worker {
  readonly #options: Required<WorkerOptions>;
  readonly #requests: ExecutorRequests;
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
      log: (line) => console.warn(line),
      ...options,
      server: options.server.replace(/\/+$/, ""),
    };
    this.#requests = requestsTo(this.#options.server, this.#options.token, this.#options.fetch);
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

  /**
   * In Node: works until SIGTERM or SIGINT. If the token is malformed, or the server refuses it or an agent, this logs one line, and
   * the program's exit status is 1.
   */
  async serve(): Promise<void> {
    const node = (globalThis as { process?: NodeProcess }).process;
    const stop = (): void => this.stop();
    for (const signal of STOP_SIGNALS) node?.on(signal, stop);
    try {
      const problem = credentialProblem("A token", this.#options.token);
      if (problem === null) return await this.run();
      this.#options.log(`The worker cannot start. ${problem}`);
    } catch (error) {
      if (!(error instanceof WorkerRequestError)) throw error;
      this.#options.log(`The worker stops: ${this.#options.server} refuses it. ${error.message}`);
    } finally {
      for (const signal of STOP_SIGNALS) node?.off(signal, stop);
    }
    if (node) node.exitCode = 1;
  }

  /** Works until `stop` is called. Throws if the token is malformed, or the server refuses it or an agent. */
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

  #isStopping(): boolean {
    return this.#stopping.signal.aborted;
  }

  async #claims(): Promise<void> {
    const connection = new ConnectionLog(this.#options.server, this.#options.log);
    const agents = [...this.#agents.keys()];
    let claimId = crypto.randomUUID();
    while (!this.#isStopping()) {
      const free = this.#options.concurrency - this.#active.size;
      if (free <= 0) {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
        continue;
      }
      const waitSeconds = connection.isOpen ? WAIT_SECONDS : FIRST_WAIT_SECONDS;
      const body = { claimId, agents, maxRuns: Math.min(free, 50), waitSeconds };
      try {
        const claimed = (await this.#requests.post("claim", body, this.#stopping.signal)) as { runs?: ClaimedRun[] };
        connection.recordSuccess(agents);
        for (const run of claimed.runs ?? []) this.#begin(run);
        claimId = crypto.randomUUID();
      } catch (error) {
        if (this.#isStopping()) return;
        if (!(error instanceof WorkerRequestError) || !error.isTransient) throw error;
        await this.#pause(connection.recordFailure(error));
      }
    }
  }

  /** Waits, until the worker is stopped at the latest. */
  async #pause(ms: number): Promise<void> {
    const woken = new Promise<void>((resolve) => {
      this.#wake = resolve;
    });
    await Promise.race([sleep(ms), woken]);
  }

  #begin(claimed: ClaimedRun): void {
    const agent = this.#agents.get(claimed.agent.name);
    if (!agent) return;
    this.#leaseMs = claimed.leaseSeconds * 1000;
    const { flushMs, holdMs } = this.#options;
    const context = new AgentContext(this.#requests, claimed, { replay: agent.replay, flushMs, holdMs });
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
      if (context.cancelled) return await context.sender.finish("cancelled"); // No heartbeat has to say so.
      await Promise.race([run(context), aborted]);
      await context.sender.finish("completed");
    } catch (error) {
      if (error instanceof Released || context.sender.lost) return;
      await this.#leave(context, error).catch((failed: unknown) => {
        console.warn(`The run ${context.runId} cannot go on:`, failed);
      });
    }
  }

  /** Ends a run whose function has failed or was cancelled, or gives it back, because the worker stops. */
  async #leave(context: AgentContext, error: unknown): Promise<void> {
    if (context.cancelled) return context.sender.finish("cancelled");
    if (error instanceof AgentError) return context.sender.finish("failed", error);
    const isStopped = this.#isStopping() && context.signal.aborted;
    if (isStopped && !(error instanceof WorkerRequestError)) return context.sender.release();
    console.error(`The agent ${context.agent.name} failed:`, error);
    context.sender.dropPending();
    return context.sender.finish("failed", new AgentError("The agent failed. Please try again.", "agent_failed"));
  }

  #beats(): { stop: () => void } {
    let timer: ReturnType<typeof setTimeout>;
    const beat = async (): Promise<void> => {
      const active = [...this.#active.keys()];
      if (active.length) {
        const runs = active.map(({ runId, sender: { epoch } }) => ({ runId, epoch }));
        try {
          const answer = (await this.#requests.post("heartbeat", { runs })) as { leaseSeconds: number; runs: ClaimedRunState[] };
          this.#leaseMs = answer.leaseSeconds * 1000;
          for (const state of answer.runs) {
            const run = active.find((one) => one.runId === state.runId && one.sender.epoch === state.epoch);
            if (run && !run.sender.ending) run.receive(state);
          }
        } catch (error) {
          console.warn("A heartbeat failed:", error);
        }
      }
      timer = setTimeout(() => void beat(), this.#leaseMs / HEARTBEATS_PER_LEASE);
    };
    timer = setTimeout(() => void beat(), this.#leaseMs / HEARTBEATS_PER_LEASE / 5);
    return { stop: () => clearTimeout(timer) };
  }}
