import { expect, test, vi } from "vitest";

import { isOverdue, msUntil } from "./time-left.ts";

const chat = vi.hoisted(() => ({ clockLagMs: 0 }));
vi.mock("./page.svelte.ts", () => ({ page: { now: Date.parse("2031-03-14T09:00:00Z"), chat } }));

test("the time until a time of the server counts by its clock, and is negative once it is past", () => {
  expect(msUntil("2031-03-14T09:00:05Z")).toBe(5000);
  expect(msUntil("2031-03-14T08:59:59Z")).toBe(-1000);
  chat.clockLagMs = 2000;
  expect(msUntil("2031-03-14T09:00:05Z")).toBe(7000);
});

test("a decision is overdue once its time has passed, and never without one", () => {
  const call = { type: "tool", toolCallId: "a", tool: "delete_file", state: "blocked" } as const;
  const isPast = (expiresAt: string): boolean => isOverdue({ ...call, expiresAt });
  expect([isPast("2031-03-14T08:59:57Z"), isPast("2031-03-14T09:00:05Z"), isOverdue(call)]).toEqual([true, false, false]);
});
