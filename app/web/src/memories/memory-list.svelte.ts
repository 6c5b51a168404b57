// The person's memories as the dialog shows them: one page after another, or the results of a search.

import type { Memory, Page } from "@khala/client";
import { requestOrNull } from "../dialogs/form-requests.svelte.ts";
import { listQuery, type MemoryFilter, type MemoryPlace } from "./memory-query.ts";

export const PAGE_SIZE = 50;
const EXPORT_PAGE_SIZE = 200;
/** More than an owner can have. */
const MAX_EXPORT_PAGES = 600;

/** Sends a request with the keys of the open chat. Errors as those of `request`. */
export type Send = <T>(method: string, path: string, body?: unknown) => Promise<T>;

export class MemoryList {
  readonly #send: Send;
  /** Undefined while they load, null if that failed. */
  items: readonly Memory[] | null | undefined = $state.raw(undefined);
  cursor: string | null = $state(null);
  isLoadingMore = $state(false);
  hasMoreFailed = $state(false);
  #generation = 0;

  constructor(send: Send) {
    this.#send = send;
  }

  /** Load the first page, or search if the query has words. An answer that is late is dropped. */
  async load(filter: MemoryFilter, place: MemoryPlace, query: string): Promise<void> {
    const generation = ++this.#generation;
    const page = await requestOrNull(() => this.#page(filter, place, query.trim() ? { q: query.trim() } : { limit: String(PAGE_SIZE) }));
    if (generation !== this.#generation) return;
    [this.items, this.cursor, this.hasMoreFailed] = [page?.items ?? null, page?.nextCursor ?? null, false];
  }

  async loadMore(filter: MemoryFilter, place: MemoryPlace): Promise<void> {
    const [generation, cursor] = [this.#generation, this.cursor];
    if (cursor === null || this.isLoadingMore) return;
    this.isLoadingMore = true;
    const page = await requestOrNull(() => this.#page(filter, place, { limit: String(PAGE_SIZE), cursor }));
    this.isLoadingMore = false;
    if (generation !== this.#generation) return;
    this.hasMoreFailed = page === null;
    if (page) [this.items, this.cursor] = [[...(this.items ?? []), ...page.items], page.nextCursor ?? null];
  }

  /** All memories. Errors as those of `request`. */
  async all(filter: MemoryFilter, place: MemoryPlace): Promise<Memory[]> {
    const items: Memory[] = [];
    let cursor: string | undefined;
    for (let number = 0; number < MAX_EXPORT_PAGES; number++) {
      const page: Page<Memory> = await this.#page(filter, place, { limit: String(EXPORT_PAGE_SIZE), ...(cursor && { cursor }) });
      items.push(...page.items);
      cursor = page.nextCursor;
      if (!cursor) break;
    }
    return items;
  }

  /** A memory was corrected: the newer one takes its place. */
  replace(id: string, newer: Memory): void {
    this.items = this.items?.map((memory) => (memory.id === id ? newer : memory));
  }

  remove(id: string): void {
    this.items = this.items?.filter((memory) => memory.id !== id);
  }

  #page(filter: MemoryFilter, place: MemoryPlace, more: Readonly<Record<string, string>>): Promise<Page<Memory>> {
    return this.#send<Page<Memory>>("GET", `/api/memories?${listQuery(filter, place, more)}`);
  }
}
