// Data of the API that a view shows and reads again while the console refreshes.

import { isRequestError } from "@khala/client";
import { errorSentence } from "./error-sentences.ts";
import { refresh } from "./refresh.svelte.ts";
import { session } from "./session.svelte.ts";

export const REFRESH_INTERVAL_MS = 4000;

export type Load<T> = (signal: AbortSignal) => Promise<T>;

export class Resource<T> {
  data: T | null = $state.raw(null);
  /** What went wrong with the last request, as a sentence; null after a success. */
  error: string | null = $state(null);
  /** Whether `data` belongs to earlier filters, because the request for the present ones has not ended. */
  isStale = $state(true);
  #load: Load<T> | null = null;
  #stop = new AbortController();

  /** Read now and then regularly. Returns a function that ends this. */
  follow(load: Load<T>, intervalMs: number): () => void {
    const stop = new AbortController();
    this.#load = load;
    this.#stop = stop;
    this.isStale = true;
    void this.#read(load, stop.signal);
    const timer = setInterval(() => refresh.isDue && !this.isStale && void this.#read(load, stop.signal), intervalMs);
    return () => {
      clearInterval(timer);
      stop.abort();
    };
  }

  /** Read again now, for example after an action. */
  async reload(): Promise<void> {
    if (this.#load !== null) await this.#read(this.#load, this.#stop.signal);
  }

  async #read(load: Load<T>, signal: AbortSignal): Promise<void> {
    try {
      const data = await load(signal);
      if (signal.aborted) return;
      [this.data, this.error] = [data, null];
      refresh.hasRead();
    } catch (error) {
      if (signal.aborted) return;
      if (!isRequestError(error)) throw error;
      this.error = errorSentence(error);
      session.onError(error);
    }
    this.isStale = false;
  }
}

/**
 * A resource for the component that calls this. `source` returns how to read it; when what `source` depends on changes, the
 * resource is read again. With an interval of 0, it is not read regularly.
 */
export function useResource<T>(source: () => Load<T>, intervalMs = REFRESH_INTERVAL_MS): Resource<T> {
  const resource = new Resource<T>();
  $effect(() => resource.follow(source(), intervalMs === 0 ? 2 ** 31 - 1 : intervalMs));
  return resource;
}
