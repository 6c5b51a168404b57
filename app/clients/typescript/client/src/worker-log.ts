// What a worker says of its connection.

const RETRY_MS = 500;
const MAX_RETRY_MS = 5000;
/** Time after which a connection that still fails is logged again. */
const REPEAT_MS = 60_000;

/** Logs once when the worker is connected, and when its connection fails, with the reason and the next try. */
export class ConnectionLog {
  isOpen = false;
  readonly #server: string;
  readonly #log: (line: string) => void;
  #delayMs = 0;
  #loggedAt = -Infinity;

  constructor(server: string, log: (line: string) => void) {
    this.#server = server;
    this.#log = log;
  }

  /** Records an answer of the server. */
  recordSuccess(agents: readonly string[]): void {
    if (!this.isOpen) this.#log(`Connected to ${this.#server}, for the agents: ${agents.join(", ")}`);
    this.isOpen = true;
    this.#delayMs = 0;
    this.#loggedAt = -Infinity;
  }

  /** Records a failure, and returns the milliseconds until the next try. */
  recordFailure(error: Error): number {
    this.isOpen = false;
    this.#delayMs = Math.min(Math.max(RETRY_MS, 2 * this.#delayMs), MAX_RETRY_MS);
    if (Date.now() - this.#loggedAt >= REPEAT_MS) {
      this.#loggedAt = Date.now();
      this.#log(`No connection to ${this.#server}: ${error.message} Next try in ${this.#delayMs / 1000} s.`);
    }
    return this.#delayMs;
  }
}
