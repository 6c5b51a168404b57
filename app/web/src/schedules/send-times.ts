// The times that are offered for a message that is sent later, and times of date fields.

import { m } from "../i18n/messages.ts";

export type SendTime = { key: string; label: string; at: Date };

const HOUR_MS = 3_600_000;
const MORNING = 8;
const EVENING = 18;
const MONDAY = 1;
/** From this hour on, the evening is too near to be offered. */
const LAST_HOUR_FOR_EVENING = 16;

/** The times that are offered at `now`, the earliest first. */
export function sendTimes(now: Date): readonly SendTime[] {
  const tomorrow = dayAt(now, 1, MORNING);
  const monday = dayAt(now, (MONDAY - now.getDay() + 7) % 7 || 7, MORNING);
  return [
    { key: "hour", label: m.in_one_hour(), at: new Date(Math.ceil((now.getTime() + HOUR_MS) / 60_000) * 60_000) },
    ...(now.getHours() < LAST_HOUR_FOR_EVENING ? [{ key: "evening", label: m.this_evening(), at: dayAt(now, 0, EVENING) }] : []),
    { key: "tomorrow", label: m.tomorrow_morning(), at: tomorrow },
    ...(monday.getTime() === tomorrow.getTime() ? [] : [{ key: "monday", label: m.monday_morning(), at: monday }]),
  ];
}

/** So many days later, at this hour by the clock of the browser. */
function dayAt(now: Date, days: number, hour: number): Date {
  return new Date(now.getFullYear(), now.getMonth(), now.getDate() + days, hour);
}

/** The value of a field for a date and a time, by the clock of the browser. */
export function fieldTime(moment: Date): string {
  const two = (value: number): string => String(value).padStart(2, "0");
  const date = [String(moment.getFullYear()).padStart(4, "0"), two(moment.getMonth() + 1), two(moment.getDate())].join("-");
  return `${date}T${two(moment.getHours())}:${two(moment.getMinutes())}`;
}

/** The time of such a field; null if it is empty or there is no such time. */
export function timeOfField(value: string): Date | null {
  const moment = new Date(value);
  return value === "" || Number.isNaN(moment.getTime()) ? null : moment;
}
