import { ApiError, NetworkError } from "@khala/client";
import { expect, test } from "vitest";

import { errorSentence } from "./error-sentences.ts";

const error = (code: string, detail: string, errors: { message: string }[] = []) => new ApiError(400, { code, detail, errors } as ConstructorParameters<typeof ApiError>[1]);

test("a failed request is told as a sentence", () => {
  expect(errorSentence(new NetworkError("fetch failed"))).toContain("cannot reach the server");
  expect(errorSentence(error("rate_limited", "no"))).toBe("The server received too many requests. Wait a moment.");
  expect(errorSentence(error("conflict", "The run has ended"))).toBe("The run has ended.");
  expect(errorSentence(error("invalid_input", "Invalid", [{ message: "`limit` is too large." }]))).toBe("`limit` is too large.");
});
