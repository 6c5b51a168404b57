// Titles of chats without one: the page derives one from the first question, but a title by the server's model comes first.

import { isRequestError, request, withRetry } from "@khala/client";
import type { Models, ThreadListEntry } from "@khala/client";
import { saveTitle } from "./account.svelte.ts";

/** The time from the end of a chat's answer in which the model's title is expected. */
const PATIENCE_MS = 20_000;
/** A chat whose answer takes longer than this many times the patience keeps its derived title in this browser only. */
const MAX_ROUNDS = 60;

export class DerivedTitles {
  readonly #entryOf: (id: string) => ThreadListEntry | null;
  readonly #proposed = new Set<string>();
  #hasModel: Promise<boolean> | null = null;

  /** `entryOf` returns the account's list entry of a chat. */
  constructor(entryOf: (id: string) => ThreadListEntry | null) {
    this.#entryOf = entryOf;
  }

  /** Save this title, for the other browsers of the account, unless the server's model writes one in time. */
  async propose(id: string, title: string): Promise<void> {
    if (this.#proposed.has(id)) return;
    this.#proposed.add(id);
    this.#hasModel ??= writesTitles();
    if ((await this.#hasModel) && !(await this.#isMissing(id))) return;
    await saveTitle(id, title);
  }

  /** Whether the chat has no title some time after its answer has ended. */
  async #isMissing(id: string): Promise<boolean> {
    for (let round = 0; round < MAX_ROUNDS; round++) {
      const wasRunning = this.#entryOf(id)?.running !== false;
      await new Promise((resolve) => setTimeout(resolve, PATIENCE_MS));
      const entry = this.#entryOf(id);
      if (entry === null || entry.thread.title) return false;
      if (!wasRunning && !entry.running) return true;
    }
    return false;
  }
}

async function writesTitles(): Promise<boolean> {
  try {
    return (await withRetry(() => request<Models>("GET", "/api/models"), { maxAttempts: 3 })).titles === true;
  } catch (error) {
    if (!isRequestError(error)) throw error;
    return false;
  }
}
