import { afterEach, expect, test } from "vitest";

import { setFormatLocale } from "../i18n/locale.ts";
import { formatBytes, formatDuration, formatMilliseconds, formatTimeLeft, formatUsd } from "./format.ts";

afterEach(() => setFormatLocale("en", []));

test("times are shown in the units that people use", () => {
  expect([formatMilliseconds(840), formatMilliseconds(1234), formatMilliseconds(0.4)]).toEqual(["840 ms", "1.2 s", "0 ms"]);
  expect([-5, 7_900, 75_000, 11_400_000, 180_000_000].map(formatDuration)).toEqual(["0 s", "7 s", "1 min 15 s", "3 h 10 min", "2 days"]);
});

test("the time left is rounded to its largest unit", () => {
  expect([-5, 45_200, 754_000, 5_399_000, 86_399_000, 259_000_000].map(formatTimeLeft)).toEqual(["0 s", "45 s", "13 min", "2 h", "24 h", "3 days"]);
});

test("sizes are shown in decimal units, and money with as many digits as matter", () => {
  expect([formatBytes(1), formatBytes(840), formatBytes(2048), formatBytes(3.4e6)]).toEqual(["1 byte", "840 bytes", "2.0 kB", "3.4 MB"]);
  expect([0, 0.000123, 0.5, 12].map(formatUsd)).toEqual(["$0", "$0.00012", "$0.50", "$12.00"]);
});

test("money is one piece in text from right to left", () => {
  setFormatLocale("ar", []);
  expect([0.42, 0.000123].map(formatUsd)).toEqual(["\u2066$0.42\u2069", "\u2066$0.00012\u2069"]);
});
