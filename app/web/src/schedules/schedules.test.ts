import { expect, test } from "vitest";

import type { Schedule } from "@khala/client";
import { untilNextLook } from "./next-look.ts";
import { changesOf, cronOfFields, fieldsOf, newSchedule, timingOf } from "./schedule-fields.ts";
import { scheduleName, statusLabel } from "./schedule-labels.ts";
import { fieldTime, sendTimes, timeOfField } from "./send-times.ts";

const NOW = Date.parse("2026-03-10T12:00:00Z");
const DEFAULTS = { at: new Date(2026, 2, 11, 8), timeZone: "Europe/Berlin", agent: "" };

function schedule(fields: Partial<Schedule>): Schedule {
  return { id: "s", text: "What is new?", timeZone: "Asia/Tokyo", missed: "once", status: "active", createdAt: "2026-03-01T00:00:00Z", updatedAt: "2026-03-01T00:00:00Z", ...fields };
}

/** One that starts a plan, and has no message. */
function planSchedule(fields: Partial<Schedule>): Schedule {
  const plan = schedule({ planId: "p", ...fields });
  delete plan.text;
  return plan;
}

test("times to send later are in the future, in order, and each once", () => {
  for (const now of [new Date(2026, 2, 8, 9), new Date(2026, 2, 9, 0, 30), new Date(2026, 2, 13, 17, 59, 59), new Date(2026, 11, 31, 23, 59)]) {
    const times = sendTimes(now).map(({ at }) => at.getTime());
    expect(times.every((time) => time > now.getTime())).toBe(true);
    expect(new Set(times).size).toBe(times.length);
  }
  // The evening of an afternoon is too near, and on a Sunday, tomorrow is Monday.
  expect(sendTimes(new Date(2026, 2, 8, 17)).map(({ key }) => key)).toEqual(["hour", "tomorrow"]);
  expect(sendTimes(new Date(2026, 2, 9, 9)).map(({ key }) => key)).toEqual(["hour", "evening", "tomorrow", "monday"]);
  expect(sendTimes(new Date(2026, 2, 9, 9)).at(-1)?.at).toEqual(new Date(2026, 2, 16, 8));
});

test("a field for a date and a time is read as it was written", () => {
  const moment = new Date(2026, 0, 2, 3, 4);
  expect(fieldTime(moment)).toBe("2026-01-02T03:04");
  expect(timeOfField(fieldTime(moment))).toEqual(moment);
  expect(timeOfField("")).toBeNull();
  expect(timeOfField("soon")).toBeNull();
});

test("the form of a schedule has its rhythm, zone and place, and asks for nothing if nothing was changed", () => {
  const known = schedule({ cron: "30 7 * * 2,4", threadId: "t", agent: "scout", name: "Report" });
  const fields = fieldsOf(known, DEFAULTS);
  expect(fields).toMatchObject({ repeat: "weekly", days: [2, 4], time: "07:30", timeZone: "Asia/Tokyo", inChat: true, agent: "scout", name: "Report" });
  expect(changesOf(known, fields, { cron: "30 7 * * 2,4", timeZone: "Asia/Tokyo" })).toEqual({});
});

test("only what was changed is sent: an empty name is removed, and another agent without other options", () => {
  const known = schedule({ cron: "0 8 * * *", name: "Report" });
  const fields = { ...fieldsOf(known, DEFAULTS), name: " ", text: "News?", agent: "scout", repeat: "workdays" as const };
  const timing = timingOf(fields);
  expect(timing).toEqual({ cron: "0 8 * * 1-5", timeZone: "Asia/Tokyo" });
  expect(timing && changesOf(known, fields, timing)).toEqual({ name: null, text: "News?", cron: "0 8 * * 1-5", timeZone: "Asia/Tokyo", agent: "scout" });
  const withAgent = schedule({ cron: "0 8 * * *", agent: "scout" });
  expect(timing && changesOf(withAgent, { ...fieldsOf(withAgent, DEFAULTS), agent: "" }, { cron: "0 8 * * *", timeZone: "Asia/Tokyo" })).toEqual({ agent: null });
});

test("a plan keeps its text and options, and a single time that was not touched stays", () => {
  const at = "2026-05-01T06:00:30Z";
  const plan = planSchedule({ at });
  const fields = fieldsOf(plan, DEFAULTS);
  expect(fields.repeat).toBe("once");
  expect(changesOf(plan, fields, timingOf(fields) ?? {})).toEqual({});
});

test("a new schedule names the chat only if it is to be sent there", () => {
  const fields = { ...fieldsOf(null, DEFAULTS), text: "Hi\0", repeat: "once" as const };
  const timing = timingOf(fields) ?? {};
  expect(newSchedule(fields, timing, { options: {}, threadId: "t" })).toEqual({ text: "Hi", at: DEFAULTS.at.toISOString(), timeZone: "Europe/Berlin", options: {} });
  expect(newSchedule({ ...fields, inChat: true }, timing, { options: {}, threadId: "t" })).toMatchObject({ threadId: "t" });
  expect(cronOfFields(fields)).toBeNull();
  expect(timingOf({ ...fields, at: "" })).toBeNull();
  expect(timingOf({ ...fields, repeat: "weekly", days: [] })).toBeNull();
});

test("a list is read again after the next time, and not in a hurry while what is due is not sent", () => {
  expect(untilNextLook([schedule({ status: "paused" }), schedule({ status: "ended" })], NOW)).toBeNull();
  expect(untilNextLook([schedule({ nextAt: "2026-03-10T12:00:10Z" }), schedule({ nextAt: "2026-03-11T12:00:10Z" })], NOW)).toBe(11_500);
  expect(untilNextLook([schedule({ nextAt: "2026-03-10T11:59:00Z" })], NOW)).toBe(4000);
  expect(untilNextLook([schedule({ nextAt: "2036-03-10T12:00:00Z" })], NOW)).toBe(3_600_000);
});

test("a schedule without a name is called by the beginning of its message, and says why it has paused", () => {
  expect(scheduleName(schedule({ name: "Report" }))).toBe("Report");
  expect(scheduleName(schedule({ text: "\n First line \nsecond" }))).toBe("First line");
  expect(scheduleName(schedule({ text: "x".repeat(100) }))).toBe(`${"x".repeat(60)}…`);
  expect(scheduleName(planSchedule({}))).toBe("Starts a plan");
  expect(statusLabel(schedule({}))).toBe("");
  expect(statusLabel(schedule({ status: "paused" }))).toBe("Paused");
  expect(statusLabel(schedule({ status: "paused", reason: "runs_failed" }))).toBe("Paused: the last five answers failed.");
  expect(statusLabel(schedule({ status: "ended", reason: "new_reason" }))).toBe("Ended");
});
