import { afterEach, expect, test } from "vitest";

import arabic from "virtual:messages/ar";
import german from "virtual:messages/de";
import english from "virtual:messages/en";
import { formatBytes, formatDateTime, formatDuration, formatNumber, formatUsd, joinParts } from "../state/format.ts";
import { LOCALES, chooseLocale, directionOf, setFormatLocale } from "./locale.ts";
import { messagesOf, setMessages } from "./messages.ts";

const [ar, de, en] = [messagesOf(arabic, "ar"), messagesOf(german, "de"), messagesOf(english, "en")];

afterEach(() => {
  setMessages(english, "en");
  setFormatLocale("en", []);
});

test("the chosen language comes first, then those of the person in their order, then English", () => {
  expect(chooseLocale("ja", ["de-CH"])).toBe("ja");
  expect(chooseLocale(null, ["pt-BR", "FR-ca", "de"])).toBe("fr");
  expect(chooseLocale(null, ["zh-Hant-TW"])).toBe("zh");
  expect(chooseLocale("nonsense", ["ar-EG", "en"])).toBe("ar");
  expect(chooseLocale("toString", ["constructor"])).toBe("en");
  expect(LOCALES.filter((locale) => directionOf(locale) === "rtl")).toEqual(["ar"]);
});

test("a number chooses among the six forms of Arabic, and the two of English and German", () => {
  expect(new Set([0, 1, 2, 3, 11, 100].map((count) => ar.kind_message({ count }).replace(/[\d٠-٩]+/g, "#"))).size).toBe(5); // many and other have the same words
  expect([0, 1, 2, 3].map((count) => ar.kind_message({ count }))).toEqual(["لا رسائل", "رسالة واحدة", "رسالتان", expect.stringMatching(/رسائل$/)]);
  expect([1, 1200].map((count) => en.kind_message({ count }))).toEqual(["1 message", "1,200 messages"]);
  expect([1, 1200].map((count) => de.kind_message({ count }))).toEqual(["1 Nachricht", "1.200 Nachrichten"]);
});

test("numbers, dates and money are shown as in the person's language and country", () => {
  setMessages(german, "de");
  setFormatLocale("de", ["en-US", "de-AT"]);
  expect([formatNumber(0.5), formatUsd(0.5), formatBytes(2048), formatDuration(75_000)]).toEqual(["0,5", expect.stringMatching(/^\$\s0,50$/), "2,0\u00a0kB", "1\u00a0Min.\u00a015\u00a0s"]);
  expect(formatDateTime("2026-03-12T13:05:00Z")).toMatch(/2026/);
});

test("in text that runs from right to left, names and parts keep their own direction", () => {
  setMessages(arabic, "ar");
  setFormatLocale("ar", []);
  expect(ar.remove_name({ name: "a.txt" })).toContain("\u2068a.txt\u2069");
  expect(joinParts(["demo", null, "2 s"])).toBe("\u2068demo\u2069 · \u20682 s\u2069");
});
