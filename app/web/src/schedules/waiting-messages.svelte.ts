// The messages of the account that wait for their time in the open chat.

import type { Page, Schedule } from "@khala/client";
import { requestOrNull } from "../dialogs/form-requests.svelte.ts";
import { listSchedules } from "./schedule-requests.ts";

/** The server lists what has ended for a week, too. */
const PAGE_SIZE = 100;
const MAX_PAGES = 5;

export class WaitingMessages {
  /** The chat and the account that they are of. */
  chatId: string | null = $state(null);
  userId: string | null = $state(null);
  items: readonly Schedule[] = $state.raw([]);
  #generation = 0;

  /** Read those of an account in a chat. After a failed request the list stays as it is. */
  async load(chatId: string, userId: string | null): Promise<void> {
    const generation = ++this.#generation;
    if (chatId !== this.chatId || userId !== this.userId) [this.chatId, this.userId, this.items] = [chatId, userId, []];
    const found = await requestOrNull(() => waitingIn(chatId));
    if (found !== null && generation === this.#generation) this.items = inOrder(found);
  }

  async reload(): Promise<void> {
    if (this.chatId !== null) await this.load(this.chatId, this.userId);
  }

  /** One was created or changed. */
  put(schedule: Schedule): void {
    if (schedule.threadId !== this.chatId) return;
    this.#generation++;
    this.items = inOrder([...this.items.filter(({ id }) => id !== schedule.id), schedule].filter(isWaiting));
  }

  remove({ id, threadId }: Schedule): void {
    if (threadId !== this.chatId) return;
    this.#generation++;
    this.items = this.items.filter((one) => one.id !== id);
  }
}

function isWaiting({ at, status, planId }: Schedule): boolean {
  return at !== undefined && planId === undefined && status !== "ended";
}

/** By their times; those that have paused last. */
function inOrder(schedules: readonly Schedule[]): readonly Schedule[] {
  const timeOf = ({ nextAt }: Schedule): number => (nextAt === undefined ? Infinity : Date.parse(nextAt));
  return schedules.toSorted((one, other) => Math.sign(timeOf(one) - timeOf(other)) || one.createdAt.localeCompare(other.createdAt));
}

async function waitingIn(threadId: string): Promise<readonly Schedule[]> {
  const found: Schedule[] = [];
  let cursor: string | undefined;
  for (let number = 0; number < MAX_PAGES; number++) {
    const page: Page<Schedule> = await listSchedules({ limit: PAGE_SIZE, cursor, threadId });
    found.push(...page.items.filter(isWaiting));
    cursor = page.nextCursor;
    if (cursor === undefined) break;
  }
  return found;
}

export const waitingMessages = new WaitingMessages();
