// How often a schedule sends: as a form has it, and as the cron expression that the server stores.

/** The days of a week, as in cron: 0 is Sunday. */
export type Rhythm =
  | { kind: "daily" | "workdays"; time: string }
  | { kind: "weekly"; days: readonly number[]; time: string }
  | { kind: "monthly"; day: number | typeof LAST_DAY; time: string }
  | { kind: "custom"; cron: string };

/** The last day of a month, as cron has it. */
export const LAST_DAY = "L";
/** Monday to Friday. */
export const WORKDAYS: readonly number[] = [1, 2, 3, 4, 5];
const WEEK: readonly number[] = [0, 1, 2, 3, 4, 5, 6];
const DAY_NAMES = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/** The cron expression of a rhythm; null if a part of it is missing. */
export function cronOf(rhythm: Rhythm): string | null {
  if (rhythm.kind === "custom") return rhythm.cron.trim().replaceAll(/\s+/g, " ") || null;
  const time = /^(\d{2}):(\d{2})/.exec(rhythm.time);
  if (time === null) return null;
  const at = `${Number(time[2])} ${Number(time[1])}`;
  switch (rhythm.kind) {
    case "daily":
      return `${at} * * *`;
    case "workdays":
      return `${at} * * 1-5`;
    case "weekly":
      return rhythm.days.length > 0 ? `${at} * * ${rhythm.days.toSorted((one, other) => one - other).join(",")}` : null;
    case "monthly":
      return `${at} ${rhythm.day} * *`;
  }
}

/** The rhythm of a cron expression: `custom` for one that the other kinds cannot say. */
export function rhythmOf(cron: string): Rhythm {
  const custom: Rhythm = { kind: "custom", cron };
  const [minute = "", hour = "", day = "", month, weekday = "", ...rest] = cron.trim().split(/\s+/);
  if (rest.length > 0 || month !== "*" || !isNumber(minute, 59) || !isNumber(hour, 23)) return custom;
  const time = `${hour.padStart(2, "0")}:${minute.padStart(2, "0")}`;
  if (weekday === "*") {
    if (day === "*") return { kind: "daily", time };
    if (day === LAST_DAY) return { kind: "monthly", day: LAST_DAY, time };
    return isNumber(day, 31) && Number(day) > 0 ? { kind: "monthly", day: Number(day), time } : custom;
  }
  const days = day === "*" ? daysOf(weekday) : null;
  if (days === null) return custom;
  if (days.length === WEEK.length) return { kind: "daily", time };
  return String(days) === String(WORKDAYS) ? { kind: "workdays", time } : { kind: "weekly", days, time };
}

function isNumber(field: string, most: number): boolean {
  return /^\d{1,2}$/.test(field) && Number(field) <= most;
}

/** The days of a field such as `1-5` or `MON,FRI`, sorted; null if it is anything else. */
function daysOf(field: string): readonly number[] | null {
  const found = new Set<number>();
  for (const part of field.split(",")) {
    const [first, last, ...rest] = part.split("-").map(dayOf);
    if (first === undefined || first === null || last === null || rest.length > 0) return null;
    const to = last ?? first;
    if (to < first) return null;
    for (let day = first; day <= to; day++) found.add(day % WEEK.length);
  }
  return [...found].toSorted((one, other) => one - other);
}

/** The number of a day, by its number or its English name: 7 is Sunday, too. */
function dayOf(text: string): number | null {
  if (/^[0-7]$/.test(text)) return Number(text);
  const at = DAY_NAMES.indexOf(text.toLowerCase());
  return at < 0 ? null : at;
}
