import { afterEach, expect, test } from "vitest";

import { setFormatLocale } from "../i18n/locale.ts";
import { formatBytes, formatDuration, formatMilliseconds, formatTimeLeft, formatUsd } from "./format.ts";

afterEach(() => setFormatLocale("en", []));

test("times are shown in the units that people use", () => {
  expect([formatMilliseconds(840), formatMilliseconds(1234), formatMilliseconds(0.4)]).toEqual(["", "1.2\u00a0s", ""]);
  expect([-5, 7_900, 75_000, 11_400_000, 180_000_000].map(formatDuration)).toEqual(["0\u00a0s", "7\u00a0s", "1\u00a0min\u00a015\u00a0s", "3\u00a0h\u00a010\u00a0min", "2\u00a0days"]);
});

test("the time left is rounded to its largest unit", () => {
  expect([-5, 45_200, 754_000, 5_399_000, 86_399_000, 259_000_000].map(formatTimeLeft)).toEqual(["0\u00a0s", "45\u00a0s", "13\u00a0min", "2\u00a0h", "24\u00a0h", "3\u00a0days"]);
});

test("sizes are shown in decimal units, and money with as many digits as matter", () => {
  expect([formatBytes(1), formatBytes(840), formatBytes(2048), formatBytes(3.4e6)]).toEqual(["1\u00a0byte", "840\u00a0bytes", "2.0\u00a0kB", "3.4\u00a0MB"]);
  expect([0, 0.000123, 0.5, 12].map(formatUsd)).toEqual(["$0", "$0.00012", "$0.50", "$12.00"]);
});

test("money is one piece in text from right to left", () => {
  setFormatLocale("ar", []);
  expect([0.42, 0.000123].map(formatUsd)).toEqual(["\u2066$0.42\u2069", "\u2066$0.00012\u2069"]);
});
