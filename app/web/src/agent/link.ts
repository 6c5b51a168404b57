// The page's end of the agent worker: promises with time-outs, and one new worker for one that crashed.

import type { AgentReply, AgentRequest, AgentApi, AgentMethod } from "../workers/agent.messages.ts";

/** The worker said no, did not answer in time, or is gone. `code` is "refused", "timeout" or "gone". */
export class AgentError extends Error {
  override readonly name = "AgentError";
  readonly code: "refused" | "timeout" | "gone";

  constructor(code: AgentError["code"], message: string) {
    super(message);
    this.code = code;
  }
}

/** What is used of a Worker. */
export type Port = {
  postMessage(request: AgentRequest): void;
  terminate(): void;
  onmessage: ((event: MessageEvent<AgentReply>) => void) | null;
  onmessageerror: ((event: MessageEvent) => void) | null;
  onerror: ((event: ErrorEvent) => void) | null;
};

export const PATIENCE_MS = 15_000;
/** So many requests wait at once; more are refused. */
export const MOST_WAITING = 1_000;
const RESTARTS = 1;

type Waiting = { settle: (reply: AgentReply) => void; fail: (error: AgentError) => void; timer: ReturnType<typeof setTimeout> };

export class AgentLink {
  readonly #make: () => Port;
  readonly #waiting = new Map<number, Waiting>();
  #port: Port | null = null;
  #crashes = 0;
  #lastId = 0;

  /** The worker is made when it is first asked something. */
  constructor(make: () => Port) {
    this.#make = make;
  }

  /**
   * Rejects with an AgentError. What was asked of a worker that crashes fails as "gone" and may be asked again; after the
   * second crash everything does.
   */
  ask<N extends AgentMethod>(name: N, asked: AgentApi[N]["asked"]): Promise<AgentApi[N]["answer"]> {
    return new Promise((resolve, reject) => {
      const port = this.#start();
      if (!port) return reject(new AgentError("gone", "The agent worker has crashed."));
      if (this.#waiting.size >= MOST_WAITING) return reject(new AgentError("refused", "The agent worker is too busy."));
      const id = ++this.#lastId;
      const timer = setTimeout(() => this.#fail(id, new AgentError("timeout", `The agent worker took too long (${name}).`)), PATIENCE_MS);
      const settle = (reply: AgentReply): void => {
        if ("error" in reply) reject(new AgentError("refused", reply.error.message));
        else resolve(reply.answer);
      };
      this.#waiting.set(id, { settle, fail: reject, timer });
      port.postMessage({ id, name, asked } as AgentRequest);
    });
  }

  #start(): Port | null {
    if (this.#port || this.#crashes > RESTARTS) return this.#port;
    const port = this.#make();
    port.onmessage = ({ data }) => this.#hear(data);
    port.onerror = (event) => this.#crash(port, event.message);
    port.onmessageerror = () => this.#crash(port, "It said what can't be read.");
    this.#port = port;
    return port;
  }

  #hear(reply: AgentReply): void {
    this.#take(reply.id)?.settle(reply);
  }

  #fail(id: number, error: AgentError): void {
    this.#take(id)?.fail(error);
  }

  #take(id: number): Waiting | undefined {
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    clearTimeout(waiting?.timer);
    return waiting;
  }

  #crash(port: Port, reason: string): void {
    if (port !== this.#port) return;
    port.terminate();
    this.#port = null;
    this.#crashes++;
    const error = new AgentError("gone", `The agent worker has crashed. ${reason}`);
    for (const id of [...this.#waiting.keys()]) this.#fail(id, error);
  }
}
