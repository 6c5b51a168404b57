// How long until a time of the server, by the clock of this page.

import { page } from "./page.svelte.ts";

/** Milliseconds until this time of the server; negative once it is past. */
export function msUntil(time: string): number {
  return Date.parse(time) + (page.chat?.clockLagMs ?? 0) - page.now;
}
