import { describe, expect, test } from "vitest";

import { ApiError, NetworkError } from "../khala/requests.ts";
import { browserOf, daysFrom, failed, inItsWords } from "./words.ts";

describe("errors", () => {
  test("are told in the server's words where those say more", () => {
    const words = inItsWords(["forbidden"]);
    expect(words(new ApiError(403, { code: "forbidden", detail: "Public threads are not switched on here." }))).toBe("Public threads are not switched on here.");
    expect(words(new ApiError(429, { code: "rate_limited", detail: "Slow down." }))).toBe("That was too much at once.");
    expect(words(new NetworkError("no"))).toBe("The server can’t be reached.");
  });

  test("of a login elsewhere have words, known or not", () => {
    expect(failed("conflict")).toBe("That login belongs to another account.");
    expect(failed("whatever")).toBe("Signing in did not work. Please try again.");
  });
});

test("so many days from now, or for ever", () => {
  expect(daysFrom(Date.UTC(2026, 0, 31), "1")).toBe("2026-02-01T00:00:00.000Z");
  expect(daysFrom(0, "")).toBeUndefined();
});

test.each([
  ["Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Firefox on Linux"],
  ["Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36 Edg/140.0", "Edge on Windows"],
  ["Mozilla/5.0 (Linux; Android 16) AppleWebKit/537.36 Chrome/140.0 Mobile Safari/537.36", "Chrome on Android"],
  ["curl/8.0", "A program"],
])("%s is %s", (agent, name) => {
  expect(browserOf(agent)).toBe(name);
});
