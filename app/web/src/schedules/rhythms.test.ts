import { expect, test } from "vitest";

import { cronOf, rhythmOf, type Rhythm } from "./rhythms.ts";

const RHYTHMS: readonly (readonly [Rhythm, string])[] = [
  [{ kind: "daily", time: "08:00" }, "0 8 * * *"],
  [{ kind: "daily", time: "00:05" }, "5 0 * * *"],
  [{ kind: "workdays", time: "07:30" }, "30 7 * * 1-5"],
  [{ kind: "weekly", days: [0, 3], time: "23:59" }, "59 23 * * 0,3"],
  [{ kind: "monthly", day: 1, time: "09:00" }, "0 9 1 * *"],
  [{ kind: "monthly", day: 31, time: "09:00" }, "0 9 31 * *"],
  [{ kind: "monthly", day: "L", time: "18:00" }, "0 18 L * *"],
  [{ kind: "custom", cron: "*/15 * * * *" }, "*/15 * * * *"],
];

test.each(RHYTHMS)("%o is %s, and back", (rhythm, cron) => {
  expect(cronOf(rhythm)).toBe(cron);
  expect(rhythmOf(cron)).toEqual(rhythm);
});

test("days are read as numbers, names, lists and ranges; 7 is Sunday", () => {
  expect(rhythmOf("0 8 * * MON-FRI")).toEqual({ kind: "workdays", time: "08:00" });
  expect(rhythmOf("0 8 * * 1,2,3,4,5")).toEqual({ kind: "workdays", time: "08:00" });
  expect(rhythmOf("0 8 * * sat,7")).toEqual({ kind: "weekly", days: [0, 6], time: "08:00" });
  expect(rhythmOf("0 8 * * 5-7")).toEqual({ kind: "weekly", days: [0, 5, 6], time: "08:00" });
  expect(rhythmOf("0 8 * * 0-6")).toEqual({ kind: "daily", time: "08:00" });
});

test.each(["0 8 * * 5-1", "0 8 * * 1#2", "0 8 * * 1/2", "0 8 1 * 1", "0 8 1-5 * *", "0 8 0 * *", "0 8,12 * * *", "60 8 * * *", "0 24 * * *", "0 8 * 1 *", "0 8 * *", "0 8 * * * *", "@daily", ""])("%s is a custom rhythm", (cron) => {
  expect(rhythmOf(cron)).toEqual({ kind: "custom", cron });
});

test("without a time, a day or an expression there is no cron expression", () => {
  expect(cronOf({ kind: "daily", time: "" })).toBeNull();
  expect(cronOf({ kind: "weekly", days: [], time: "08:00" })).toBeNull();
  expect(cronOf({ kind: "custom", cron: "  " })).toBeNull();
  expect(cronOf({ kind: "custom", cron: " 0  8 * * * " })).toBe("0 8 * * *");
});
