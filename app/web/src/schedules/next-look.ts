// When a list of schedules is read again. The server does not tell the page that it has sent something.

import type { Schedule } from "@khala/client";

/** From a time of a schedule until the server has recorded that it has sent the message. */
const RECORDED_AFTER_MS = 1500;
/** The least time between two looks, such as while a server has not sent what is due. */
const MIN_MS = 4000;
/** A longer wait of a timer is cut by browsers. */
const MAX_MS = 3_600_000;

/** Milliseconds from `now` until the list changes by itself; null while nothing is going to be sent. */
export function untilNextLook(schedules: readonly Schedule[], now: number): number | null {
  const times = schedules.flatMap(({ status, nextAt }) => (status === "active" && nextAt !== undefined ? [Date.parse(nextAt)] : []));
  if (times.length === 0) return null;
  const left = Math.min(...times) - now + RECORDED_AFTER_MS;
  return Math.min(MAX_MS, Math.max(left, left < RECORDED_AFTER_MS ? MIN_MS : RECORDED_AFTER_MS));
}

/** Look again when the list changes by itself, and when the person comes back. Returns how to end that. */
export function lookAgain(schedules: readonly Schedule[], look: () => Promise<void>): () => void {
  const wait = untilNextLook(schedules, Date.now());
  const timer = wait === null ? undefined : setTimeout(() => void look(), wait);
  const comeBack = (): void => {
    if (!document.hidden) void look();
  };
  document.addEventListener("visibilitychange", comeBack);
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", comeBack);
  };
}
