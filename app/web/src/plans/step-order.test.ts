import { expect, it } from "vitest";

import { nextRetry, waitsFor } from "./step-order.ts";
import { stepDetail } from "./testing.ts";

const titled = (id: string) => ({ planned: { id, title: id.toUpperCase() } });
const before = [
  stepDetail("done", { status: "completed", ...titled("done") }),
  stepDetail("open", { status: "open", ...titled("open") }),
  stepDetail("now", { status: "running", ...titled("now") }),
  stepDetail("skipped", { status: "skipped", ...titled("skipped") }),
  stepDetail("failed", { status: "failed", ...titled("failed") }),
  stepDetail("cancelled", { status: "cancelled", ...titled("cancelled") }),
  stepDetail("stuck", { status: "open", blocked: true, ...titled("stuck") }),
];
const byId = new Map(before.map((step) => [step.id, step]));
const step = (dependsOn: string[], blocked = false) => stepDetail("a", { blocked, planned: { id: "a", title: "A", dependsOn } });

it("a step waits for those before it that have not ended, and not for one that a person skipped", () => {
  expect(waitsFor(step(["done", "open", "now", "skipped"]), byId)).toEqual(["OPEN", "NOW"]);
  expect(waitsFor(step([]), byId)).toEqual([]);
});

it("a blocked step names those that block it", () => {
  expect(waitsFor(step(["open", "skipped", "failed", "cancelled", "stuck"], true), byId)).toEqual(["FAILED", "CANCELLED", "STUCK"]);
  expect(waitsFor(step(["done", "skipped"], true), byId)).toEqual(["SKIPPED"]);
});

it("a plan waits for the first retry only if no other step may start", () => {
  const now = Date.parse("2031-01-01T00:00:00Z");
  const late = stepDetail("b", { ...titled("b"), notBefore: "2031-01-01T00:00:45Z" });
  const soon = stepDetail("c", { ...titled("c"), notBefore: "2031-01-01T00:00:20Z" });
  const after = stepDetail("d", { planned: { id: "d", title: "D", dependsOn: ["c"] } });
  expect(nextRetry([late, soon, after], now)).toEqual({ title: "C", waitMs: 20_000 });
  expect(nextRetry([late, soon, after], now + 20_000)).toBeNull();
  expect(nextRetry([late, soon, stepDetail("e")], now)).toBeNull();
  expect(nextRetry([stepDetail("f", { status: "completed" })], now)).toBeNull();
});
