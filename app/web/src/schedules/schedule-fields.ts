// The fields of the form for a schedule, and what they ask of the server.

import type { NewSchedule, RunOptions, Schedule, ScheduleEdit } from "@khala/client";
import { storableText } from "../conversation/drafts.ts";
import { cronOf, LAST_DAY, rhythmOf, WORKDAYS, type Rhythm } from "./rhythms.ts";
import { fieldTime, timeOfField } from "./send-times.ts";

export type Repeat = "once" | Rhythm["kind"];

export const REPEATS: readonly Repeat[] = ["once", "daily", "workdays", "weekly", "monthly", "custom"];

/** What the form has. `at` is of a field for a date and a time, `time` of one for a time. */
export type ScheduleFields = {
  text: string;
  name: string;
  repeat: Repeat;
  at: string;
  time: string;
  days: readonly number[];
  day: string;
  cron: string;
  timeZone: string;
  agent: string;
  inChat: boolean;
};

/** The fields of a schedule; for null, those of a new one. `at` is the time that a new one begins with. */
export function fieldsOf(schedule: Schedule | null, { at, timeZone, agent }: { at: Date; timeZone: string; agent: string }): ScheduleFields {
  const fields: ScheduleFields = {
    text: schedule?.text ?? "",
    name: schedule?.name ?? "",
    repeat: schedule === null ? "daily" : "once",
    at: fieldTime(schedule?.at === undefined ? at : new Date(schedule.at)),
    time: "08:00",
    days: [1],
    day: "1",
    cron: schedule?.cron ?? "0 8 * * *",
    timeZone: schedule?.cron === undefined ? timeZone : schedule.timeZone,
    agent: schedule === null ? agent : (schedule.agent ?? ""),
    inChat: schedule?.threadId !== undefined,
  };
  return schedule?.cron === undefined ? fields : withRhythm(fields, rhythmOf(schedule.cron));
}

function withRhythm(fields: ScheduleFields, rhythm: Rhythm): ScheduleFields {
  const repeat = rhythm.kind;
  switch (rhythm.kind) {
    case "custom":
      return { ...fields, repeat };
    case "weekly":
      return { ...fields, repeat, time: rhythm.time, days: rhythm.days };
    case "monthly":
      return { ...fields, repeat, time: rhythm.time, day: String(rhythm.day) };
    default:
      return { ...fields, repeat, time: rhythm.time, days: rhythm.kind === "workdays" ? WORKDAYS : fields.days };
  }
}

/** The cron expression of the fields; null for one time, or if a field of it is empty. */
export function cronOfFields({ repeat, time, days, day, cron }: ScheduleFields): string | null {
  switch (repeat) {
    case "once":
      return null;
    case "custom":
      return cronOf({ kind: "custom", cron });
    case "weekly":
      return cronOf({ kind: "weekly", days, time });
    case "monthly":
      return cronOf({ kind: "monthly", day: day === LAST_DAY ? LAST_DAY : Number(day), time });
    default:
      return cronOf({ kind: repeat, time });
  }
}

type Timing = Pick<NewSchedule, "at" | "cron" | "timeZone">;

/** When it sends; null if a field is empty. */
export function timingOf(fields: ScheduleFields): Timing | null {
  const { timeZone } = fields;
  if (fields.repeat !== "once") {
    const cron = cronOfFields(fields);
    return cron === null ? null : { cron, timeZone };
  }
  const at = timeOfField(fields.at);
  return at === null ? null : { at: at.toISOString(), timeZone };
}

/** The request for a new schedule. */
export function newSchedule(fields: ScheduleFields, timing: Timing, { options, threadId }: { options: RunOptions; threadId: string | null }): NewSchedule {
  const name = fields.name.trim();
  return { ...timing, text: storableText(fields.text), options, ...(name !== "" && { name }), ...(fields.inChat && threadId !== null && { threadId }) };
}

/** The changes of a schedule. Its options stay, except for the agent. */
export function changesOf(schedule: Schedule, fields: ScheduleFields, timing: Timing): ScheduleEdit {
  const name = storableText(fields.name.trim());
  const text = storableText(fields.text);
  const isMoved = timing.cron === undefined ? fields.at !== fieldTime(new Date(schedule.at ?? "")) : timing.cron !== schedule.cron || timing.timeZone !== schedule.timeZone;
  return {
    ...(name !== (schedule.name ?? "") && { name: name || null }),
    ...(schedule.planId === undefined && text !== schedule.text && { text }),
    ...(isMoved && timing),
    ...(schedule.planId === undefined && fields.agent !== (schedule.agent ?? "") && { agent: fields.agent || null }),
  };
}
