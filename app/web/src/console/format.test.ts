import { expect, test } from "vitest";

import { formatBytes, formatDay, formatDuration, formatRelative, formatShare, formatUsd, humanize, shortId } from "./format.ts";

test.each([
  [0, "0 ms"],
  [999, "999 ms"],
  [1234, "1.2 s"],
  [9999, "9.9 s"],
  [42_900, "42 s"],
  [59_960, "59 s"],
  [60_000, "1 min"],
  [125_000, "2 min 5 s"],
  [11_400_000, "3 h 10 min"],
  [180_000_000, "2 d 2 h"],
  [-5, "0 ms"],
])("a duration of %d ms is %s", (ms, text) => expect(formatDuration(ms)).toBe(text));

test.each([
  [null, "–"],
  ["0", "$0"],
  ["0.00123", "$0.0012"],
  ["0.0000001", "$0.0000001"],
  [1234.5, "$1,234.50"],
])("an amount of %s is %s", (usd, text) => expect(formatUsd(usd)).toBe(text));

test.each([
  [0, "0 B"],
  [999, "999 B"],
  [1000, "1.0 kB"],
  [12_345_678, "12.3 MB"],
  [5e15, "5000.0 TB"],
])("%d bytes are %s", (bytes, text) => expect(formatBytes(bytes)).toBe(text));

test("a time is told from now in its largest unit", () => {
  const now = Date.parse("2026-01-02T12:00:00Z");
  expect(formatRelative("2026-01-02T11:59:30Z", now)).toBe("30 s ago");
  expect(formatRelative("2026-01-02T10:30:00Z", now)).toBe("1 h ago");
  expect(formatRelative("2026-01-04T13:00:00Z", now)).toBe("in 2 d");
});

test("a share above zero is never shown as zero", () => {
  expect([0, 0.001, 0.5, 1].map(formatShare)).toEqual(["0 %", "< 1 %", "50 %", "100 %"]);
});

test("names of the API become words", () => {
  expect(["tool_call", "cancelRequested", "http-503", "webhook.test"].map(humanize)).toEqual(["Tool call", "Cancel requested", "Http 503", "Webhook test"]);
});

test("an id is told by its end, a day by its date in UTC", () => {
  expect(shortId("01a1fbf2-37c2-7506-a120-9f98121662b0")).toBe("…121662b0");
  expect(formatDay("2026-11-24")).toBe("24 Nov");
});
