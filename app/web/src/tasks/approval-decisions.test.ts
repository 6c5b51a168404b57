import { expect, test } from "vitest";
import { ApiError, NetworkError } from "@khala/client";
import type { Approval } from "@khala/client";
import { parseArguments, describeDecision, decisionErrorMessage, hiddenCharactersLabel } from "./approval-decisions.ts";

test("arguments are an object, and anything else is said to be none", () => {
  expect(parseArguments('{"path": "a"}')).toEqual({ args: { path: "a" } });
  for (const text of ["[]", "7", "null", '"a"']) expect(parseArguments(text)).toEqual({ problem: "Input must be a JSON object, such as { … }" });
  expect(parseArguments('{"path": ')).toEqual({ problem: "This is not valid JSON. Check line 1, column 10." });
});

test("characters that nobody would see are listed once each, escaped ones as well", () => {
  expect(hiddenCharactersLabel('{"path": "old\u202edm.exe", "to": "\\u200b\\udb40\\udc41 \u202e"}')).toBe("Hidden characters: ⟨U+202E⟩ ⟨U+200B⟩ ⟨U+E0041⟩");
  for (const plain of ['{\n  "path": "\\u00e9 ❤️"\n}', '"C:\\\\u202e"', '"⟨U+202E⟩"']) expect(hiddenCharactersLabel(plain)).toBe("");
});

test("the server's no is said in words", () => {
  const refused = (status: number, code: string, detail: string) => decisionErrorMessage(new ApiError(status, { code, detail }));
  expect(refused(409, "already_decided", "This call was denied before.")).toBe("Someone else answered first. This call was denied before.");
  expect(refused(403, "forbidden", "Only an owner may.")).toBe("Only an owner may.");
  expect(decisionErrorMessage(new ApiError(400, { code: "invalid_input", errors: [{ path: "path", message: "7 is no text" }] }))).toBe("Invalid input: 7 is no text");
  expect(decisionErrorMessage(new NetworkError("?"))).toBe("Can’t reach the server. Check your connection.");
});

test("who answered is told as far as it is known", () => {
  const approval: Approval = { runId: "r", toolCallId: "a", tool: "t", args: {}, digest: "d", state: "denied", createdAt: "", expiresAt: "" };
  expect(describeDecision({ ...approval, decidedName: "Ada", reason: "it is mine" })).toBe("Denied by Ada: it is mine");
  expect(describeDecision({ ...approval, state: "approved" })).toBe("Allowed.");
  expect(describeDecision({ ...approval, state: "pending" })).toBe("");
  expect(describeDecision({ ...approval, state: "expired" })).toBe("Expired without an answer.");
});
