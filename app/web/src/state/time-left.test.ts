import { expect, test, vi } from "vitest";

import { msUntil } from "./time-left.ts";

const chat = vi.hoisted(() => ({ clockLagMs: 0 }));
vi.mock("./page.svelte.ts", () => ({ page: { now: Date.parse("2031-03-14T09:00:00Z"), chat } }));

test("the time until a time of the server counts by its clock, and is negative once it is past", () => {
  expect(msUntil("2031-03-14T09:00:05Z")).toBe(5000);
  expect(msUntil("2031-03-14T08:59:59Z")).toBe(-1000);
  chat.clockLagMs = 2000;
  expect(msUntil("2031-03-14T09:00:05Z")).toBe(7000);
});
