// What the page of one run or thread is called. Titles of threads are private until an operator opens the thread.

import { formatMinute } from "./format.ts";
import type { RunItem, ThreadItem } from "./types.ts";

/** "researcher · 14 Mar 2031, 09:25" */
export function runName({ agent, createdAt }: Pick<RunItem, "agent" | "createdAt">): string {
  return `${agent ?? "Default agent"} · ${formatMinute(createdAt)}`;
}

/** "Thread of Grace Hopper · 14 Mar 2031, 09:25" */
export function threadName({ owner, createdAt }: Pick<ThreadItem, "owner" | "createdAt">): string {
  return `Thread of ${owner === null ? "a guest" : (owner.name ?? owner.email ?? "an account")} · ${formatMinute(createdAt)}`;
}
