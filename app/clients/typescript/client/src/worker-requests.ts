// The requests of a worker to the executor protocol.

import { WorkerRequestError } from "./worker-types.ts";

const REQUEST_TIMEOUT_MS = 35_000;
const RETRY_MS = 500;
const MAX_RETRY_MS = 5000;

/** Sends a request below `/api/executor`, and returns the answer. Throws `WorkerRequestError`. */
export type Post = (path: string, body: unknown, signal?: AbortSignal) => Promise<unknown>;

/** The function that sends a worker's requests to a server. */
export function postTo(server: string, token: string, fetch: typeof globalThis.fetch): Post {
  return async (path, body, stop) => {
    const timeout = AbortSignal.timeout(REQUEST_TIMEOUT_MS);
    let response: Response;
    let text: string;
    try {
      response = await fetch(`${server}/api/executor/${path}`, {
        method: "POST",
        headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
        body: JSON.stringify(body),
        signal: stop ? AbortSignal.any([stop, timeout]) : timeout,
      });
      text = await response.text();
    } catch (error) {
      throw new WorkerRequestError(`There was no answer: ${reasonOf(error)}`, "unavailable", 0);
    }
    const answer = parse(text);
    if (response.ok) return answer;
    const problem = (answer ?? {}) as { code?: string; detail?: string };
    throw new WorkerRequestError(problem.detail ?? `Status ${response.status}`, problem.code ?? "", response.status);
  };
}

/** Sends a request until there is an answer. It can be repeated, because a repetition changes nothing. */
export async function untilAnswered(send: () => Promise<unknown>, isLost: () => boolean): Promise<unknown> {
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
