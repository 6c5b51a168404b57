// Requests on behalf of the person. Errors are reported to the person.

import { ApiError, backoffMs, isRequestError, request, sleep, withRetry } from "@khala/client";
import type { CreatedThread } from "@khala/client";
import type { KnownChat } from "./keyring.ts";
import { errorMessage } from "./error-messages.ts";
import type { ThreadKeys } from "./page-model.ts";

type Given = { keys?: ThreadKeys; body?: unknown; spares?: readonly string[] };

/** What creates the chat on the server. */
export function newThread({ id, key, temporary }: KnownChat): unknown {
  return { id, ...(key && { anonKey: key }), ...(temporary && { temporary }) };
}

export class PageRequests {
  readonly #say: (words: string) => void;

  /** `say` shows a message to the person. */
  constructor(say: (words: string) => void) {
    this.#say = say;
  }

  /** Send a request with retry. Returns undefined after an error, which is reported after the sentence `failure`, or null if its code is among `spares`. */
  async attempt<T>(failure: string, method: string, path: string, given: Given & { spares: readonly string[] }): Promise<T | null | undefined>;
  async attempt<T>(failure: string, method: string, path: string, given?: Given): Promise<T | undefined>;
  async attempt<T>(failure: string, method: string, path: string, { spares = [], ...given }: Given = {}): Promise<T | null | undefined> {
    try {
      return await withRetry(() => request<T>(method, path, given), { maxAttempts: 5 });
    } catch (error) {
      if (!isRequestError(error)) throw error;
      if (error instanceof ApiError && spares.includes(error.code)) return null;
      this.#say(`${failure} ${errorMessage(error)}`);
      return undefined;
    }
  }

  /** Send an optional request; null if it fails. */
  async quietly<T>(method: string, path: string, given: Given = {}): Promise<T | null> {
    try {
      return await withRetry(() => request<T>(method, path, given), { maxAttempts: 3 });
    } catch (error) {
      if (!isRequestError(error)) throw error;
      return null;
    }
  }

  /**
   * Create the chat on the server, retrying for as long as `wanted()` is true; null once it is false. `waits(until)` is called
   * before each pause with its end in ms since the epoch. Throws ApiError if the server refuses.
   */
  async create(chat: KnownChat, { wanted, waits }: { wanted: () => boolean; waits: (until: number) => void }): Promise<CreatedThread | null> {
    for (let attempt = 0; wanted(); attempt++) {
      try {
        return await request<CreatedThread>("POST", "/api/threads", { body: newThread(chat) });
      } catch (error) {
        if (!isRequestError(error)) throw error;
        const { status, retryAfter } = error instanceof ApiError ? error : { status: 503, retryAfter: null };
        if (status < 500 && status !== 429) throw error;
        const delay = Math.max(backoffMs(attempt, Math.random()), 1000 * (retryAfter ?? 0));
        if (wanted()) waits(Date.now() + delay);
        await sleep(delay);
      }
    }
    return null;
  }
}
