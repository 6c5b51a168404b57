import { expect, it } from "vitest";

import { waitsFor } from "./step-order.ts";
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
