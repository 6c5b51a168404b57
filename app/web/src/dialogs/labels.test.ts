import { describe, expect, test } from "vitest";

import { ApiError, NetworkError } from "@khala/client";
import { browserName, expiryAfterDays, loginErrorMessage, serverMessageFor } from "./labels.ts";

describe("errors", () => {
  test("are told in the server's words where those say more", () => {
    const words = serverMessageFor(["forbidden"]);
    expect(words(new ApiError(403, { code: "forbidden", detail: "Public threads are disabled on this server." }))).toBe("Public threads are disabled on this server.");
    expect(words(new ApiError(429, { code: "rate_limited", detail: "Slow down." }))).toBe("Too many requests. Try again in a moment.");
    expect(words(new NetworkError("no"))).toBe("Can’t reach the server. Check your connection.");
  });

  test("of a login elsewhere have words, known or not", () => {
    expect(loginErrorMessage("conflict")).toBe("This sign-in is already linked to another account.");
    expect(loginErrorMessage("whatever")).toBe("Couldn’t sign you in. Try again.");
  });
});

test("so many days from now, or for ever", () => {
  expect(expiryAfterDays(Date.UTC(2026, 0, 31), "1")).toBe("2026-02-01T00:00:00.000Z");
  expect(expiryAfterDays(0, "")).toBeUndefined();
});

test.each([
  ["Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Firefox on Linux"],
  ["Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36 Edg/140.0", "Edge on Windows"],
  ["Mozilla/5.0 (Linux; Android 16) AppleWebKit/537.36 Chrome/140.0 Mobile Safari/537.36", "Chrome on Android"],
  ["curl/8.0", "App"],
])("%s is %s", (agent, name) => {
  expect(browserName(agent)).toBe(name);
});
