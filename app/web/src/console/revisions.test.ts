import { expect, test } from "vitest";

import { marksOf, wordsOfRevision } from "./revisions.ts";
import type { RevisionItem } from "./types.ts";

const AT = "2026-01-01T10:00:00Z";
const question: RevisionItem = { messageId: "q", parentId: null, role: "user", runId: null, state: "final", createdRevision: 2, revision: 2, createdAt: AT, changes: [], changesTruncated: false, packed: false };
const answer: RevisionItem = {
  ...question,
  messageId: "a",
  role: "assistant",
  createdRevision: 2,
  revision: 5,
  changes: [
    { revision: 3, at: AT, parts: 2, kinds: ["text-delta", "tool-call", "text-delta"] },
    { revision: 5, at: AT, parts: 1, kinds: ["finish"] },
  ],
};

test("each revision with a change has one mark", () => {
  expect(marksOf([answer, question])).toEqual([2, 3, 5]);
});

test("marks are thinned out, the first stays", () => {
  const many = Array.from({ length: 1000 }, (_, index) => ({ ...question, createdRevision: index + 1 }));
  const marks = marksOf(many);
  expect(marks.length).toBeLessThanOrEqual(400);
  expect(marks[0]).toBe(1);
});

test("a revision is told by what changed", () => {
  expect(wordsOfRevision([answer, question], 3)).toContain("An answer got text and a tool call at ");
  expect(wordsOfRevision([answer, question], 2)).toContain("A user’s message was sent at ");
  const ended = { ...answer, changes: [{ revision: 5, at: AT, parts: 2, kinds: ["finish", "text-delta"] }] };
  expect(wordsOfRevision([ended], 5)).toContain("An answer got text and its end at ");
  expect(wordsOfRevision([answer, question], 4)).toBe("No message changed at this revision.");
});
