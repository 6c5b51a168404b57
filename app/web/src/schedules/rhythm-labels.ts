// When a schedule sends, in words of the language of the page.

import type { Schedule } from "@khala/client";
import { formatLocale, isRightToLeft } from "../i18n/locale.ts";
import { m } from "../i18n/messages.ts";
import { LAST_DAY, rhythmOf, type Rhythm } from "./rhythms.ts";

const UTC = "UTC";
/** A Sunday. */
const SUNDAY = Date.UTC(2026, 0, 4);
const DAY_MS = 86_400_000;

/** The time zone of this browser. */
export function browserZone(): string {
  return new Intl.DateTimeFormat().resolvedOptions().timeZone || UTC;
}

/** The time zones that the browser knows, and these. */
export function timeZones(...more: readonly string[]): readonly string[] {
  return [...new Set([...Intl.supportedValuesOf("timeZone"), UTC, ...more])].toSorted();
}

/** "Central European Time"; the IANA name for a zone that the browser does not know. */
export function zoneLabel(zone: string): string {
  if (zone === UTC) return zone;
  try {
    const parts = new Intl.DateTimeFormat(formatLocale(), { timeZone: zone, timeZoneName: "longGeneric" }).formatToParts(SUNDAY);
    return parts.find(({ type }) => type === "timeZoneName")?.value ?? zone;
  } catch (error) {
    if (error instanceof RangeError) return zone;
    throw error;
  }
}

/** "08:00" as people of the language read it. */
export function timeLabel(time: string): string {
  const [hours = 0, minutes = 0] = time.split(":").map(Number);
  return new Date(SUNDAY + (hours * 60 + minutes) * 60_000).toLocaleTimeString(formatLocale(), { timeStyle: "short", timeZone: "UTC" });
}

export function weekdayLabel(day: number, width: "long" | "short" = "long"): string {
  return new Date(SUNDAY + day * DAY_MS).toLocaleDateString(formatLocale(), { weekday: width, timeZone: "UTC" });
}

/** The days of the week, in the order of the language. */
export function weekdays(): readonly number[] {
  const locale = new Intl.Locale(formatLocale()) as Intl.Locale & { getWeekInfo?: () => { firstDay: number } };
  const first = locale.getWeekInfo?.().firstDay ?? 1;
  return Array.from({ length: 7 }, (_, at) => (first + at) % 7);
}

/** "Monday to Friday at 08:00" */
export function rhythmLabel(rhythm: Rhythm): string {
  switch (rhythm.kind) {
    case "daily":
      return m.daily_at({ time: timeLabel(rhythm.time) });
    case "workdays":
      return m.workdays_at({ time: timeLabel(rhythm.time) });
    case "weekly": {
      const days = weekdays().filter((day) => rhythm.days.includes(day)).map((day) => weekdayLabel(day));
      return m.weekly_at({ days: new Intl.ListFormat(formatLocale(), { type: "conjunction" }).format(days), time: timeLabel(rhythm.time) });
    }
    case "monthly":
      return rhythm.day === LAST_DAY ? m.monthly_on_last_day_at({ time: timeLabel(rhythm.time) }) : m.monthly_at({ day: rhythm.day, time: timeLabel(rhythm.time) });
    case "custom":
      // It has no letters that would say its direction.
      return m.by_cron_expression({ cron: isRightToLeft() ? `\u2066${rhythm.cron}\u2069` : rhythm.cron });
  }
}

/** "Monday to Friday at 08:00", with the zone if it is not that of the browser; for one time, that time. */
export function timingLabel({ at, cron, timeZone }: Pick<Schedule, "at" | "cron" | "timeZone">, now: number, ownZone = browserZone()): string {
  if (cron === undefined) return at === undefined ? "" : m.once_at({ time: momentLabel(at, now) });
  const rhythm = rhythmLabel(rhythmOf(cron));
  return timeZone === ownZone ? rhythm : m.rhythm_in_zone({ rhythm, zone: zoneLabel(timeZone) });
}

/** When a schedule sends next: "tomorrow" if its rhythm says the time of day, else "tomorrow at 08:00". */
export function nextLabel({ cron, timeZone, nextAt = "" }: Pick<Schedule, "cron" | "timeZone" | "nextAt">, now: number, ownZone = browserZone()): string {
  const saysTime = cron !== undefined && timeZone === ownZone && rhythmOf(cron).kind !== "custom";
  return saysTime ? dayLabel(new Date(nextAt), now, ownZone) : momentLabel(nextAt, now, ownZone);
}

/** "tomorrow at 08:00", "Thu 12 Mar at 08:00": a time near `now` (ms), in the zone of the browser or in another one. */
export function momentLabel(time: string, now: number, timeZone?: string): string {
  const moment = new Date(time);
  const clock = moment.toLocaleTimeString(formatLocale(), { timeStyle: "short", ...(timeZone !== undefined && { timeZone }) });
  return m.day_at_time({ day: dayLabel(moment, now, timeZone), time: clock });
}

/** "tomorrow", "Thu 12 Mar" */
function dayLabel(moment: Date, now: number, timeZone?: string): string {
  const days = dayNumber(moment, timeZone) - dayNumber(new Date(now), timeZone);
  if (Math.abs(days) <= 1) return new Intl.RelativeTimeFormat(formatLocale(), { numeric: "auto" }).format(days, "day");
  const isThisYear = yearOf(moment, timeZone) === yearOf(new Date(now), timeZone);
  return moment.toLocaleDateString(formatLocale(), { weekday: "short", day: "numeric", month: "short", ...(!isThisYear && { year: "numeric" }), ...(timeZone !== undefined && { timeZone }) });
}

/** Days since 1970 of the date that calendars of the zone show. */
function dayNumber(moment: Date, timeZone?: string): number {
  const parts = new Intl.DateTimeFormat("en", { calendar: "gregory", year: "numeric", month: "numeric", day: "numeric", ...(timeZone !== undefined && { timeZone }) }).formatToParts(moment);
  const part = (name: string): number => Number(parts.find(({ type }) => type === name)?.value);
  return Date.UTC(part("year"), part("month") - 1, part("day")) / DAY_MS;
}

function yearOf(moment: Date, timeZone?: string): number {
  return new Date(dayNumber(moment, timeZone) * DAY_MS).getUTCFullYear();
}
