// How long until a time of the server, by the clock of this page.

import type { Block } from "@khala/client";
import { page } from "./page.svelte.ts";

/** Milliseconds until this time of the server; negative once it is past. */
export function msUntil(time: string): number {
  return Date.parse(time) + (page.chat?.clockLagMs ?? 0) - page.now;
}

/** Whether a tool call waits for a decision whose time has passed. The server ends it soon. */
export function isOverdue(block: Block): boolean {
  return block.type === "tool" && block.expiresAt !== undefined && msUntil(block.expiresAt) <= 0;
}
