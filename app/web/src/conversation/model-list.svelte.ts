// The models that the server offers, and the one that the person prefers on it.

import { isRequestError, request, withRetry } from "@khala/client";
import type { AccessKeys, Model, Models } from "@khala/client";
import { modelTitle } from "./model-names.ts";

/** What the server stores of a person's preferences. */
export interface ServerPreferences {
  readonly instructions?: string;
  readonly model?: string;
  readonly titles: boolean;
}

/** The credentials of preferences: `id` is the same for the same person. */
export interface PreferenceOwner {
  readonly id: string;
  readonly keys: AccessKeys;
}

const PATH = "/api/me/preferences";
/** The list and the preferences are requested again after this time. */
const MAX_AGE_MS = 600_000;

class ModelList {
  list: Models | null = $state.raw(null);
  preferences: ServerPreferences | null = $state.raw(null);
  #owner: string | null = null;
  #listedAt = -Infinity;
  #listing = Promise.resolve();
  #readAt = -Infinity;

  /** Load the list and the owner's preferences, unless both are known and recent. What can't be loaded stays as it was. */
  async load(owner: PreferenceOwner | null): Promise<void> {
    await Promise.all([this.loadList(), this.#loadPreferences(owner)]);
  }

  /** Load the list, unless it is known and recent. */
  loadList(): Promise<void> {
    if (performance.now() - this.#listedAt >= MAX_AGE_MS) {
      this.#listedAt = performance.now();
      this.#listing = this.#readList();
    }
    return this.#listing;
  }

  async #readList(): Promise<void> {
    const found = await quietly(() => request<Models>("GET", "/api/models"));
    if (found === null) this.#listedAt = -Infinity;
    else this.list = found;
  }

  async #loadPreferences(owner: PreferenceOwner | null): Promise<void> {
    const id = owner?.id ?? null;
    if (id === this.#owner && performance.now() - this.#readAt < MAX_AGE_MS) return;
    if (id !== this.#owner) this.preferences = null;
    [this.#owner, this.#readAt] = [id, performance.now()];
    if (owner === null) return;
    const found = await quietly(() => request<ServerPreferences>("GET", PATH, { keys: owner.keys }));
    if (this.#owner !== id) return;
    if (found === null) this.#readAt = -Infinity;
    else this.preferences = found;
  }

  /** Change preferences; null removes one. Errors as those of `request`. */
  async change(owner: PreferenceOwner, changes: { instructions?: string | null; model?: string | null; titles?: boolean }): Promise<void> {
    const changed = await withRetry(() => request<ServerPreferences>("PATCH", PATH, { keys: owner.keys, body: changes }), { maxAttempts: 3 });
    [this.#owner, this.#readAt, this.preferences] = [owner.id, performance.now(), changed];
  }

  find(model: string | null): Model | null {
    return this.list?.items.find((item) => item.model === model) ?? null;
  }

  /** The name of a model for people; of models that would read the same, what a request calls it. */
  nameOf(model: string): string {
    const title = modelTitle(this.find(model) ?? { name: model.slice(model.indexOf(":") + 1) });
    const isAmbiguous = this.list?.items.some((item) => item.model !== model && modelTitle(item) === title) === true;
    return isAmbiguous ? model : title;
  }
}

async function quietly<T>(ask: () => Promise<T>): Promise<T | null> {
  try {
    return await withRetry(ask, { maxAttempts: 3 });
  } catch (error) {
    if (!isRequestError(error)) throw error;
    return null;
  }
}

export const modelList = new ModelList();
