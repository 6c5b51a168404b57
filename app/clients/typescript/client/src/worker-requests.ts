// The requests of a worker to the executor protocol.

import { credentialProblem } from "./requests.ts";
import { WorkerRequestError } from "./worker-types.ts";

const REQUEST_TIMEOUT_MS = 35_000;
/** For the content of a blob, up to 128 MiB. */
const BLOB_TIMEOUT_MS = 600_000;
const NO_BODY = new Set([204, 205, 304]);
const RETRY_MS = 500;
const MAX_RETRY_MS = 5000;

/** Requests to the executor protocol. `path` follows `/api/executor/`. They throw `WorkerRequestError`. */
export interface ExecutorRequests {
  /** Sends JSON, and returns the answer. */
  post(path: string, body: unknown, signal?: AbortSignal): Promise<unknown>;
  /** Sends any content, and returns a response whose status is one of success. */
  fetch(method: string, path: string, init: RequestInit): Promise<Response>;
}

/** The requests of a worker with this token. */
export function requestsTo(server: string, token: string, fetch: typeof globalThis.fetch): ExecutorRequests {
  async function send(method: string, path: string, init: RequestInit, timeoutMs: number): Promise<Response> {
    const problem = credentialProblem("A token", token);
    if (problem !== null) throw new WorkerRequestError(problem, "unauthorized", 401);
    const timeout = AbortSignal.timeout(timeoutMs);
    const headers = { authorization: `Bearer ${token}`, ...(init.headers as Record<string, string> | undefined) };
    const signal = init.signal ? AbortSignal.any([init.signal, timeout]) : timeout;
    try {
      const response = await fetch(`${server}/api/executor/${path}`, { ...init, method, headers, signal });
      // Read as a whole, so that an answer that breaks off is no answer.
      const whole = new Response(NO_BODY.has(response.status) ? null : await response.arrayBuffer(), response);
      if (response.ok) return whole;
      const { detail, code } = (parse(await whole.text()) ?? {}) as { code?: string; detail?: string };
      throw new WorkerRequestError(detail ?? `Status ${response.status}`, code ?? "", response.status);
    } catch (error) {
      if (error instanceof WorkerRequestError) throw error;
      throw new WorkerRequestError(`There was no answer: ${reasonOf(error)}`, "unavailable", 0);
    }
  }
  return {
    async post(path, body, signal) {
      const headers = { "content-type": "application/json" };
      const init = { headers, body: JSON.stringify(body), ...(signal && { signal }) };
      return parse(await (await send("POST", path, init, REQUEST_TIMEOUT_MS)).text());
    },
    fetch: (method, path, init) => send(method, path, init, BLOB_TIMEOUT_MS),
  };
}

/** Sends a request until there is an answer. It can be repeated, because a repetition changes nothing. */
export async function untilAnswered<T>(send: () => Promise<T>, isLost: () => boolean): Promise<T> {
  for (let delay = RETRY_MS; ; delay = Math.min(2 * delay, MAX_RETRY_MS)) {
    if (isLost()) throw new WorkerRequestError("Another worker has this run.", "stale_epoch", 409);
    try {
      return await send();
    } catch (error) {
      if (!(error instanceof WorkerRequestError) || !error.isTransient) throw error;
    }
    await sleep(delay);
  }
}

/** The message of an error, with that of its cause: `fetch` only says that it has failed. */
function reasonOf(error: unknown): string {
  const cause = error instanceof Error ? error.cause : undefined;
  if (!(cause instanceof Error)) return String(error);
  // A host with several addresses fails with an error for each, and no message of its own.
  const code = (cause as { code?: string }).code;
  return `${String(error)} (${cause.message === "" ? (code ?? cause.name) : cause.message})`;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined; // An error page of a proxy.
  }
}

/** Waits. With `unref`, a Node process may end meanwhile. */
export function sleep(ms: number, unref = false): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms) as { unref?: () => void };
    if (unref) timer.unref?.();
  });
}
