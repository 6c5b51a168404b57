import { expect, it } from "vitest";

import { triesFrom } from "./step-tries.ts";

it("the tries of a step have their runs, their agents and how they ended", () => {
  const started = (attempt: number) => ({ type: "step_started", data: { attempt, agent: "default", runId: `r${attempt}` } });
  const events = [
    started(1),
    { type: "step_retrying", data: { error: "No luck" } },
    started(2),
    { type: "step_unfinished", data: {} },
    { type: "step_failed", data: { error: "No progress" } },
    { type: "step_reopened", data: {} },
    started(3),
    { type: "step_reopened", data: { interrupted: true } },
    { type: "attempt_charged", data: {} },
    started(4),
  ];
  expect(triesFrom(events).map(({ number, runId, end }) => [number, runId, end])).toEqual([
    [1, "r1", "Failed: No luck"],
    [2, "r2", "Ended without completing the step"],
    [3, "r3", "Interrupted"],
    [4, "r4", null],
  ]);
  expect(triesFrom([{ type: "step_skipped", data: {} }])).toEqual([]);
});
