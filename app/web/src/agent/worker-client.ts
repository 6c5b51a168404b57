// The page's side of the agent worker: requests as promises with a timeout, and a limited number of restarts.

import type { AgentReply, AgentRequest, AgentApi, AgentMethod } from "../workers/agent.messages.ts";

/** The worker reported an error ("refused"), did not answer in time ("timeout"), or has crashed ("gone"). */
export class AgentWorkerError extends Error {
  override readonly name = "AgentWorkerError";
  readonly code: "refused" | "timeout" | "gone";

  constructor(code: AgentWorkerError["code"], message: string) {
    super(message);
    this.code = code;
  }
}

/** The part of `Worker` that is used here. */
export type AgentPort = {
  postMessage(request: AgentRequest): void;
  terminate(): void;
  onmessage: ((event: MessageEvent<AgentReply>) => void) | null;
  onmessageerror: ((event: MessageEvent) => void) | null;
  onerror: ((event: ErrorEvent) => void) | null;
};

export const REQUEST_TIMEOUT_MS = 15_000;
/** The maximum number of pending requests; further ones are refused. */
export const MAX_PENDING_REQUESTS = 1_000;
const MAX_RESTARTS = 1;

type Waiting = { settle: (reply: AgentReply) => void; fail: (error: AgentWorkerError) => void; timer: ReturnType<typeof setTimeout> };

export class AgentWorkerClient {
  readonly #createPort: () => AgentPort;
  readonly #pending = new Map<number, Waiting>();
  #port: AgentPort | null = null;
  #crashes = 0;
  #lastId = 0;

  /** The worker is created with the first request. */
  constructor(make: () => AgentPort) {
    this.#createPort = make;
  }

  /**
   * Send a request. Rejects with an AgentWorkerError. Pending requests of a worker that crashes fail with "gone" and may be retried; after
   * the second crash every request fails.
   */
  request<N extends AgentMethod>(name: N, args: AgentApi[N]["args"]): Promise<AgentApi[N]["result"]> {
    return new Promise((resolve, reject) => {
      const port = this.#start();
      if (!port) return reject(new AgentWorkerError("gone", "The agent worker has crashed."));
      if (this.#pending.size >= MAX_PENDING_REQUESTS) return reject(new AgentWorkerError("refused", "The agent worker is too busy."));
      const id = ++this.#lastId;
      const timer = setTimeout(() => this.#fail(id, new AgentWorkerError("timeout", `The agent worker took too long (${name}).`)), REQUEST_TIMEOUT_MS);
      const settle = (reply: AgentReply): void => {
        if ("error" in reply) reject(new AgentWorkerError("refused", reply.error.message));
        else resolve(reply.result);
      };
      this.#pending.set(id, { settle, fail: reject, timer });
      port.postMessage({ id, name, args } as AgentRequest);
    });
  }

  #start(): AgentPort | null {
    if (this.#port || this.#crashes > MAX_RESTARTS) return this.#port;
    const port = this.#createPort();
    port.onmessage = ({ data }) => this.#receive(data);
    port.onerror = (event) => this.#handleCrash(port, event.message);
    port.onmessageerror = () => this.#handleCrash(port, "It posted a message that can't be read.");
    this.#port = port;
    return port;
  }

  #receive(reply: AgentReply): void {
    this.#take(reply.id)?.settle(reply);
  }

  #fail(id: number, error: AgentWorkerError): void {
    this.#take(id)?.fail(error);
  }

  #take(id: number): Waiting | undefined {
    const waiting = this.#pending.get(id);
    this.#pending.delete(id);
    clearTimeout(waiting?.timer);
    return waiting;
  }

  #handleCrash(port: AgentPort, reason: string): void {
    if (port !== this.#port) return;
    port.terminate();
    this.#port = null;
    this.#crashes++;
    const error = new AgentWorkerError("gone", `The agent worker has crashed. ${reason}`);
    for (const id of [...this.#pending.keys()]) this.#fail(id, error);
  }
}
