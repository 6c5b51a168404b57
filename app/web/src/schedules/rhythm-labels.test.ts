import { afterEach, expect, test } from "vitest";

import german from "virtual:messages/de";
import english from "virtual:messages/en";
import { setFormatLocale } from "../i18n/locale.ts";
import { setMessages } from "../i18n/messages.ts";
import { momentLabel, nextLabel, rhythmLabel, timeZones, timingLabel, zoneLabel } from "./rhythm-labels.ts";

const NOW = Date.parse("2026-03-10T12:00:00Z");

afterEach(() => {
  setMessages(english, "en");
  setFormatLocale("en", []);
});

test("a rhythm is said in words", () => {
  expect(rhythmLabel({ kind: "daily", time: "08:00" })).toBe("Every day at 08:00");
  expect(rhythmLabel({ kind: "workdays", time: "08:05" })).toBe("Monday to Friday at 08:05");
  expect(rhythmLabel({ kind: "weekly", days: [5, 1, 0], time: "18:30" })).toBe("Every week on Monday, Friday and Sunday at 18:30");
  expect(rhythmLabel({ kind: "monthly", day: 1, time: "09:00" })).toBe("Every month on day 1 at 09:00");
  expect(rhythmLabel({ kind: "monthly", day: "L", time: "09:00" })).toBe("Every month on the last day at 09:00");
  expect(rhythmLabel({ kind: "custom", cron: "*/5 * * * *" })).toBe("By cron expression: */5 * * * *");
});

test("a time has the name of a zone that is not the browser's; a zone that the browser does not know has its own name", () => {
  const schedule = { cron: "0 7 * * 1-5", timeZone: "Europe/Berlin" };
  expect(timingLabel(schedule, NOW, "UTC")).toBe("Monday to Friday at 07:00 (Central European Time)");
  expect(timingLabel(schedule, NOW, "Europe/Berlin")).toBe("Monday to Friday at 07:00");
  expect(zoneLabel("UTC")).toBe("UTC");
  expect(zoneLabel("Mars/Olympus_Mons")).toBe("Mars/Olympus_Mons");
  expect(timeZones("Mars/Olympus_Mons")).toEqual(expect.arrayContaining(["UTC", "Europe/Berlin", "Mars/Olympus_Mons"]));
});

test("a near time is said by its day, in the given zone", () => {
  expect(momentLabel("2026-03-10T15:00:00Z", NOW, "UTC")).toBe("today at 15:00");
  expect(momentLabel("2026-03-10T15:00:00Z", NOW, "Asia/Tokyo")).toBe("tomorrow at 00:00");
  expect(momentLabel("2026-03-09T15:00:00Z", NOW, "UTC")).toBe("yesterday at 15:00");
  expect(momentLabel("2026-03-12T08:00:00Z", NOW, "UTC")).toBe("Thu 12 Mar at 08:00");
  expect(momentLabel("2027-01-01T08:00:00Z", NOW, "UTC")).toBe("Fri, 1 Jan 2027 at 08:00");
});

test("the next time is only a day where the rhythm says its time", () => {
  const daily = { cron: "0 7 * * *", timeZone: "Europe/Berlin", nextAt: "2026-03-11T06:00:00Z" };
  expect(nextLabel(daily, NOW, "Europe/Berlin")).toBe("tomorrow");
  expect(nextLabel(daily, NOW, "Asia/Tokyo")).toBe("tomorrow at 15:00");
  expect(nextLabel({ ...daily, cron: "*/30 * * * *" }, NOW, "Europe/Berlin")).toBe("tomorrow at 07:00");
  expect(nextLabel({ ...daily, nextAt: "2026-03-16T06:00:00Z" }, NOW, "Europe/Berlin")).toBe("Mon 16 Mar");
});

test("German has its own words for days and times", () => {
  setMessages(german, "de");
  setFormatLocale("de", []);
  expect(momentLabel("2026-03-11T15:00:00Z", NOW, "UTC")).toBe("morgen um 15:00");
  expect(rhythmLabel({ kind: "weekly", days: [1, 2], time: "08:00" })).toBe("Jede Woche am Montag und Dienstag um 08:00");
});
