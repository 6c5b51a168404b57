import { expect, test } from "vitest";
import type { Approval } from "../khala/frames.ts";
import { ApiError, NetworkError } from "../khala/requests.ts";
import { argsIn, decidedInWords, refusedInWords } from "./deciding.ts";

test("arguments are an object, and anything else is said to be none", () => {
  expect(argsIn('{"path": "a"}')).toEqual({ args: { path: "a" } });
  for (const text of ["[]", "7", "null", '"a"']) expect(argsIn(text)).toEqual({ problem: "Arguments must be a JSON object: { … }" });
  expect(argsIn('{"path": ')).toMatchObject({ problem: expect.stringContaining("Invalid JSON.") as string });
});

test("the server's no is said in words", () => {
  const refused = (status: number, code: string, detail: string) => refusedInWords(new ApiError(status, { code, detail }));
  expect(refused(409, "already_decided", "This call was denied before.")).toBe("Someone else answered first. This call was denied before.");
  expect(refused(403, "forbidden", "Only an owner may.")).toBe("Only an owner may.");
  expect(refusedInWords(new ApiError(400, { code: "invalid_input", errors: [{ path: "path", message: "7 is no text" }] }))).toBe("Invalid arguments: 7 is no text");
  expect(refusedInWords(new NetworkError("?"))).toBe("Can’t reach the server. Check your connection.");
});

test("who answered is told as far as it is known", () => {
  const approval: Approval = { runId: "r", toolCallId: "a", tool: "t", args: {}, digest: "d", state: "denied", createdAt: "", expiresAt: "" };
  expect(decidedInWords({ ...approval, decidedName: "Ada", reason: "it is mine" })).toBe("Denied by Ada: it is mine");
  expect(decidedInWords({ ...approval, state: "approved" })).toBe("Approved.");
  expect(decidedInWords({ ...approval, state: "pending" })).toBe("");
  expect(decidedInWords({ ...approval, state: "expired" })).toBe("Expired without an answer.");
});
