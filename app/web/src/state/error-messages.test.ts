import { expect, test } from "vitest";

import { ApiError, NetworkError } from "@khala/client";
import { errorMessage, isGone } from "./error-messages.ts";

test("an answer without a reason is told by what happened and what to do, and never by its status", () => {
  expect(errorMessage(new ApiError(404, {}))).toBe("This is no longer on the server. Reload the page to see what is there now.");
  expect(errorMessage(new ApiError(418, {}))).toBe("Something went wrong on the server. Try again in a moment.");
  expect(errorMessage(new ApiError(502, {}))).toBe("The server is unavailable. Try again in a moment.");
  expect(errorMessage(new ApiError(409, { code: "conflict", detail: "The plan has ended." }))).toBe("The plan has ended.");
});

test("only an answer of the server says that something is gone", () => {
  expect([new ApiError(404, { code: "not_found" }), new ApiError(403, {}), new NetworkError("?")].map(isGone)).toEqual([true, false, false]);
});
