// The schedules of the account, page by page, newest first.

import type { Page, Schedule } from "@khala/client";
import { requestOrNull } from "../dialogs/form-requests.svelte.ts";
import { listSchedules } from "./schedule-requests.ts";

const PAGE_SIZE = 20;
/** The most that one request lists. */
const MAX_PAGE_SIZE = 200;

export class ScheduleList {
  /** Undefined while they load, null if that failed. */
  items: readonly Schedule[] | null | undefined = $state.raw(undefined);
  isLoadingMore = $state(false);
  hasMoreFailed = $state(false);
  #cursor: string | null = $state(null);
  #generation = 0;

  get hasMore(): boolean {
    return this.#cursor !== null;
  }

  /** Read as many as are shown again. An answer that is late is dropped; after a failure, what was shown stays. */
  load = async (): Promise<void> => {
    const generation = ++this.#generation;
    const limit = Math.min(MAX_PAGE_SIZE, Math.max(PAGE_SIZE, this.items?.length ?? 0));
    const page = await requestOrNull(() => listSchedules({ limit }));
    if (generation !== this.#generation) return;
    if (page !== null) this.#show([], page);
    else this.items ??= null;
  };

  async loadMore(): Promise<void> {
    const [generation, cursor] = [this.#generation, this.#cursor];
    if (cursor === null || this.isLoadingMore) return;
    this.isLoadingMore = true;
    const page = await requestOrNull(() => listSchedules({ limit: PAGE_SIZE, cursor }));
    this.isLoadingMore = false;
    if (generation !== this.#generation) return;
    this.hasMoreFailed = page === null;
    if (page !== null) this.#show(this.items ?? [], page);
  }

  /** One was created or changed. */
  put(schedule: Schedule): void {
    const { items } = this;
    if (!items) return void this.load();
    this.#generation++;
    const isKnown = items.some(({ id }) => id === schedule.id);
    this.items = isKnown ? items.map((one) => (one.id === schedule.id ? schedule : one)) : [schedule, ...items];
  }

  remove(id: string): void {
    this.#generation++;
    this.items = this.items?.filter((one) => one.id !== id);
  }

  #show(before: readonly Schedule[], page: Page<Schedule>): void {
    [this.items, this.#cursor, this.hasMoreFailed] = [[...before, ...page.items], page.nextCursor ?? null, false];
  }
}
