import { expect, test } from "vitest";

import { ApiError, NetworkError } from "@khala/client";
import type { ImportCounts } from "@khala/client";
import { ImportEventReader } from "./import-events.ts";
import { failureLabel, fileProblem, importError, importLabel, leftOutLabels, MAX_EXPORT_BYTES } from "./import-labels.ts";

const REPORT: ImportCounts = { conversations: 2, known: 1, messages: 1200, files: 1, threads: [], leftOut: { "calls of tools": 3, reasoning: 1500, "new kind": 1 } };

test("events are read once each, however the text is cut; comments and unknown types are left out", () => {
  const event = (type: string) => `event: message\ndata: ${JSON.stringify({ type, report: REPORT })}\n\n`;
  const text = `${event("progress")}: keep-alive\n\n${event("new_type")}${event("imported")}`;
  for (const size of [1, 7, 50, text.length]) {
    const reader = new ImportEventReader();
    const types: string[] = [];
    for (let end = size; end < text.length + size; end += size) types.push(...reader.next(text.slice(0, end)).map(({ type }) => type));
    expect(types).toEqual(["progress", "imported"]);
  }
});

test("a report is told in words, with what was left out, the most first", () => {
  expect(importLabel(REPORT)).toBe("2 chats imported · 1,200 messages · 1 file · 1 was here already");
  expect(importLabel({ ...REPORT, conversations: 0, known: 0, messages: 0, files: 0 })).toBe("0 chats imported");
  expect(leftOutLabels(REPORT)).toEqual(["Reasoning: 1,500", "Tool calls: 3", "new kind: 1"]);
});

test("a file that is empty or too large is not sent", () => {
  expect(fileProblem({ size: 0 })).toBe("This file is empty.");
  expect(fileProblem({ size: MAX_EXPORT_BYTES })).toBeNull();
  expect(fileProblem({ size: MAX_EXPORT_BYTES + 1 })).toContain("too large");
});

test("each refusal has a sentence of its own", () => {
  const refused = (status: number, code: string, limit?: string) => importError(new ApiError(status, { code, detail: "No.", ...(limit !== undefined && { limit }) }));
  expect(refused(413, "payload_too_large")).toContain("too large");
  expect(refused(429, "rate_limited", "imports_per_hour")).toContain("ten files an hour");
  expect(refused(429, "rate_limited", "open_imports")).toContain("Another import");
  expect(refused(401, "unauthorized")).toContain("signed out");
  expect(refused(400, "invalid_input")).toBe("No.");
  expect(importError(new NetworkError("cut"))).toContain("connection was lost");
  expect(failureLabel({ type: "failed", code: "invalid_input", message: "The zip is damaged.", report: REPORT })).toContain("The zip is damaged.");
  expect(failureLabel({ type: "failed", code: "internal", message: "Oops.", report: REPORT })).toContain("ended early");
});
