import { expect, test } from "vitest";
import type { Approval } from "@khala/client";
import { decidedApproval, wasApproved } from "./run-approvals.ts";

const approval = (toolCallId: string, state: Approval["state"]): Approval => ({ runId: "r", toolCallId, tool: "t", args: {}, digest: "d", state, createdAt: "", expiresAt: "" });

test("the approvals of a run are read once, and again for a decision that came later", async () => {
  const answers = [[approval("a", "approved"), approval("b", "pending")], [approval("a", "approved"), approval("b", "approved")]];
  let reads = 0;
  const chat = { call: <T>() => Promise.resolve({ items: answers[reads++] } as T) };
  expect((await decidedApproval(chat, "run 1", "a"))?.toolCallId).toBe("a");
  expect((await decidedApproval(chat, "run 1", "a"))?.state).toBe("approved");
  expect(reads).toBe(1);
  expect((await decidedApproval(chat, "run 1", "b"))?.state).toBe("approved");
  expect(reads).toBe(2);
});

test("a call was approved by a person if its reason says so", () => {
  expect([wasApproved("Approved by Ada."), wasApproved("Approved."), wasApproved("Half way"), wasApproved(undefined)]).toEqual([true, true, false, false]);
});
