// Numbers, sizes, times and money as people of the chosen language read them.

import { formatLocale, isRightToLeft } from "../i18n/locale.ts";
import { m } from "../i18n/messages.ts";

const numberFormats = new Map<string, Intl.NumberFormat>();

/** "1,204": the number in digits of the language. */
export function formatNumber(value: number, options: Intl.NumberFormatOptions = {}): string {
  const key = `${formatLocale()} ${JSON.stringify(options)}`;
  let format = numberFormats.get(key);
  if (!format) numberFormats.set(key, (format = new Intl.NumberFormat(formatLocale(), options)));
  return format.format(value);
}

/** "82%": a share from 0 to 1, in whole percent. */
export function formatPercent(share: number): string {
  return formatNumber(share, { style: "percent" });
}

/** "one, two": parts of a description in one line, without "and". */
export function formatUnits(parts: readonly string[]): string {
  return new Intl.ListFormat(formatLocale(), { type: "unit", style: "short" }).format(parts);
}

/** "demo · 57 tokens · 2.1 s": the parts that are there. Where text runs from right to left, each part keeps its own direction. */
export function joinParts(parts: readonly (string | false | null | undefined)[]): string {
  const shown = parts.filter((part): part is string => Boolean(part));
  return shown.map(isolate).join(" · ");
}

/** A text by others, for a sentence of the page. In one from right to left, it keeps its own direction. */
export function isolate(text: string): string {
  return isRightToLeft() ? `\u2068${text}\u2069` : text;
}

/** "1.2 s"; empty for less than a second, which nobody needs to know. */
export function formatMilliseconds(value: number): string {
  if (value < 1000) return "";
  return m.seconds({ count: formatNumber(value / 1000, { minimumFractionDigits: 1, maximumFractionDigits: 1 }) });
}

/** "7 s", "2 min 5 s", "3 h 10 min", "40 days": whole seconds of `value` (ms), 0 if it is negative. */
export function formatDuration(value: number): string {
  const seconds = Math.max(0, Math.floor(value / 1000));
  if (seconds < 60) return m.seconds({ count: formatNumber(seconds) });
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return m.minutes_seconds({ minutes: formatNumber(minutes), seconds: formatNumber(seconds % 60) });
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? m.hours_minutes({ hours: formatNumber(hours), minutes: formatNumber(minutes % 60) }) : m.days({ count: Math.floor(hours / 24) });
}

/** "45 s", "12 min", "24 h", "3 days": `value` (ms) rounded to its largest unit; 0 if it is negative. */
export function formatTimeLeft(value: number): string {
  const seconds = Math.max(0, Math.round(value / 1000));
  if (seconds < 90) return m.seconds({ count: formatNumber(seconds) });
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return m.minutes({ count: formatNumber(minutes) });
  const hours = Math.round(minutes / 60);
  return hours < 48 ? m.hours({ count: formatNumber(hours) }) : m.days({ count: Math.round(hours / 24) });
}

/** "840 bytes", "1.2 MB" */
export function formatBytes(bytes: number): string {
  if (bytes < 1000) return m.bytes({ count: bytes });
  const [unit, per] = bytes < 1e6 ? (["kB", 1e3] as const) : bytes < 1e9 ? (["MB", 1e6] as const) : (["GB", 1e9] as const);
  return `${formatNumber(bytes / per, { minimumFractionDigits: 1, maximumFractionDigits: 1 })}\u00a0${unit}`;
}

/** "12 Mar 2026, 14:05" */
export function formatDateTime(time: string): string {
  return new Date(time).toLocaleString(formatLocale(), { dateStyle: "medium", timeStyle: "short" });
}

/** "12 Mar 2026" */
export function formatDate(time: string): string {
  return new Date(time).toLocaleDateString(formatLocale(), { dateStyle: "medium" });
}

/** "October", and "2025" if `time` (ms) is in another year than `now`. */
export function formatMonth(time: number, now: number): string {
  const date = new Date(time);
  const isThisYear = date.getFullYear() === new Date(now).getFullYear();
  return date.toLocaleDateString(formatLocale(), isThisYear ? { month: "long" } : { year: "numeric" });
}

/** "$0.50", and "$0.0012" where it is less than a cent. Text from right to left would tear “US$” apart, so it has an isolated "$0.50", too. */
export function formatUsd(usd: number): string {
  const digits = usd === 0 ? { maximumFractionDigits: 0 } : usd >= 0.01 ? {} : { minimumSignificantDigits: 2, maximumSignificantDigits: 2 };
  const options: Intl.NumberFormatOptions = { style: "currency", currency: "USD", currencyDisplay: "narrowSymbol", ...digits };
  return isRightToLeft() ? `\u2066${new Intl.NumberFormat("en", options).format(usd)}\u2069` : formatNumber(usd, options);
}
