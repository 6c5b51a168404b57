import { expect, it } from "vitest";

import { formatDuration } from "../state/format.ts";
import { spentBySteps, stepSpentLabel } from "./step-spent.ts";

const event = (stepId: string | undefined, spent?: unknown) => ({ ...(stepId !== undefined && { stepId }), data: spent === undefined ? {} : { spent } });

it("the cost and the time of all attempts of a step are added, also of those that were given up", () => {
  const sums = spentBySteps([event("a", { usd: "0.02", seconds: 60 }), event("b", { seconds: 3 }), event("a", { usd: "0.01", seconds: 5.5 }), event("a"), event(undefined, { usd: "9" }), event("c", { usd: "?" }), event("c", null)]);
  expect([...sums]).toEqual([["a", { usd: 0.03, seconds: 65.5 }], ["b", { usd: 0, seconds: 3 }], ["c", { usd: 0, seconds: 0 }]]);
});

it("a step that has ended shows its cost and time, and one that is running the time so far", () => {
  const now = Date.parse("2031-01-01T00:01:00Z");
  expect(stepSpentLabel({ status: "completed" }, { usd: 0.03, seconds: 65.5 }, now)).toBe(`$0.03 · ${formatDuration(65_500)}`);
  expect(stepSpentLabel({ status: "running", startedAt: "2031-01-01T00:00:18Z" }, undefined, now)).toBe("42\u00a0s");
  expect([stepSpentLabel({ status: "open" }, undefined, now), stepSpentLabel({ status: "running" }, undefined, now), stepSpentLabel({ status: "completed" }, { usd: 0, seconds: 0.4 }, now)]).toEqual(["", "", ""]);
});
