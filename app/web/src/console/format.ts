// Numbers, times and money as the console shows them: compact, in English.

const SECOND_MS = 1000;
const MINUTE_MS = 60 * SECOND_MS;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;
const UNITS = [
  ["d", DAY_MS],
  ["h", HOUR_MS],
  ["min", MINUTE_MS],
] as const;
const INTEGER = new Intl.NumberFormat("en-US");
const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const TIME = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const MINUTE = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });

/** What is shown where there is no value. */
export const NOTHING = "–";

/** "12,345" */
export function formatCount(value: number): string {
  return INTEGER.format(value);
}

/** "12.3K", for places with little room. */
export function formatCompact(value: number): string {
  return COMPACT.format(value);
}

/** "840 ms", "1.2 s", "2 min 5 s", "3 h 10 min", "40 d 2 h": `value` is in ms. */
export function formatDuration(value: number): string {
  const ms = Math.max(0, value);
  if (ms < SECOND_MS) return `${Math.round(ms)} ms`;
  if (ms < MINUTE_MS) return `${ms < 10 * SECOND_MS ? (Math.floor(ms / 100) / 10).toFixed(1) : Math.floor(ms / SECOND_MS)} s`;
  if (ms < HOUR_MS) return pair(ms, MINUTE_MS, "min", SECOND_MS, "s");
  return ms < DAY_MS ? pair(ms, HOUR_MS, "h", MINUTE_MS, "min") : pair(ms, DAY_MS, "d", HOUR_MS, "h");
}

function pair(ms: number, large: number, largeUnit: string, small: number, smallUnit: string): string {
  const rest = Math.floor((ms % large) / small);
  return `${Math.floor(ms / large)} ${largeUnit}${rest === 0 ? "" : ` ${rest} ${smallUnit}`}`;
}

/** "24 Nov 2026, 14:05:09" in the time zone of the browser. */
export function formatTime(time: string): string {
  return TIME.format(new Date(time));
}

/** "24 Nov 2026, 14:05", for names. */
export function formatMinute(time: string): string {
  return MINUTE.format(new Date(time));
}

/** "24 Nov" of an ISO date. */
export function formatDay(day: string): string {
  return DAY.format(new Date(`${day.slice(0, 10)}T00:00:00Z`));
}

/** "5 min ago", "in 2 h", in the largest whole unit; `now` is in ms since the epoch. */
export function formatRelative(time: string, now: number): string {
  const difference = new Date(time).getTime() - now;
  const [unit, size] = UNITS.find(([, ms]) => Math.abs(difference) >= ms) ?? (["s", SECOND_MS] as const);
  const text = `${Math.floor(Math.abs(difference) / size)} ${unit}`;
  return difference > 0 ? `in ${text}` : `${text} ago`;
}

/** "$1,234.50", "$0.0012": a decimal string or a number in USD. */
export function formatUsd(value: string | number | null | undefined): string {
  if (value === null || value === undefined) return NOTHING;
  const usd = Number(value);
  if (usd === 0) return "$0";
  if (Math.abs(usd) < 0.01) return `$${usd.toLocaleString("en-US", { maximumSignificantDigits: 2 })}`;
  return `$${usd.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
}

/** "840 B", "1.2 MB" */
export function formatBytes(bytes: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = bytes < 1000 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(bytes) / 3));
  return `${power === 0 ? bytes : (bytes / 1000 ** power).toFixed(1)} ${units[power] ?? ""}`;
}

/** "42 %": `share` is from 0 to 1. */
export function formatShare(share: number): string {
  return `${share > 0 && share < 0.01 ? "< 1" : Math.round(100 * share)} %`;
}

/** The last characters of an id. The ids are in order of time, so their beginnings are alike. */
export function shortId(id: string): string {
  return `…${id.slice(-8)}`;
}

/** "Tool call" of `tool_call`, `tool-call` or `toolCall`. */
export function humanize(name: string): string {
  const words = name.replaceAll(/([a-z])([A-Z])/g, "$1 $2").replaceAll(/[_.-]+/g, " ").toLowerCase();
  return words.charAt(0).toUpperCase() + words.slice(1);
}
