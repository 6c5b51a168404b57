import { describe, expect, it } from "vitest";

import { agentLabel, budgetShare, completedLabel, eventLabel, fallbackLabel, hintLabel, iterationLabel, otherCountsLabel, spentLabel, statusLabel, stepLabel } from "./plan-labels.ts";
import { planLook } from "./plan-looks.ts";
import { planEntry, stepDetail } from "./testing.ts";

describe("the status of a plan", () => {
  it.each([
    ["idle", undefined, "Not started"],
    ["running", undefined, "Running"],
    ["pausing", "requested", "Pausing after the steps that are running"],
    ["paused", "requested", "Paused"],
    ["paused", "review", "Paused for your review of “Build”"],
    ["paused", "step_failed", "Paused: “Build” failed"],
    ["paused", "no_progress", "Paused: the last attempts completed no step"],
    ["paused", "all_limited", "Paused: every agent has reached its rate limit"],
    ["paused", "budget", "Paused: the budget is used up"],
    ["paused", "access", "Paused: the person who started this plan can no longer write in this chat"],
    ["stopping", "interrupted", "Stopping…"],
    ["stopped", "interrupted", "Stopped"],
    ["stopped", "completed", "Finished"],
    ["stopped", "max_iterations", "Stopped: reached the limit of 1,200 attempts"],
    ["stopped", "no_tasks", "Stopped: none of the steps that are left can run"],
    ["stopped", "error", "Stopped: “Build” failed"],
  ] as const)("%s, %s", (status, reason, words) => expect(statusLabel({ status, maxIterations: 1200, ...(reason && { reason }) }, "Build")).toBe(words));

  it("names no step where it is not known which", () => {
    expect(statusLabel({ status: "paused", reason: "review", maxIterations: 1 })).toBe("Paused for your review");
    expect(statusLabel({ status: "paused", reason: "step_failed", maxIterations: 1 })).toBe("Paused: a step failed");
    expect(statusLabel({ status: "stopped", reason: "error", maxIterations: 1 })).toBe("Stopped: a step failed");
  });
});

it("a plan that pauses by itself says what to do, and one that somebody paused says nothing", () => {
  const reasons = ["review", "step_failed", "no_progress", "all_limited", "budget", "access", "requested"] as const;
  const hints = reasons.map((reason) => hintLabel({ status: "paused", reason }));
  expect(hints.map((hint) => hint === null)).toEqual([false, false, false, false, false, false, true]);
  expect(new Set(hints).size).toBe(reasons.length);
  expect([hintLabel({ status: "running" }), hintLabel({ status: "stopped", reason: "completed" })]).toEqual([null, null]);
  for (const reason of ["max_iterations", "no_tasks", "error"] as const) expect(hintLabel({ status: "stopped", reason })).toContain("new plan");
});

it("progress counts each step once, the blocked ones too", () => {
  const all = planEntry({ counts: { completed: 3, open: 4, running: 1, blocked: 2, failed: 1 } });
  expect([completedLabel(all), otherCountsLabel(all, { isShort: true })]).toEqual(["3 of 11 steps", "1 failed · 2 blocked"]);
  const ended = planEntry({ counts: { completed: 1, open: 1, failed: 1, skipped: 2, cancelled: 1 } });
  expect([otherCountsLabel(ended, { isShort: false }), otherCountsLabel(ended, { isShort: true })]).toEqual(["1 failed · 2 skipped · 1 cancelled", "1 failed"]);
  expect(otherCountsLabel(planEntry({ counts: { completed: 1 } }), { isShort: false })).toBe("");
  expect(iterationLabel(planEntry({ iteration: 1200, maxIterations: 9000 }))).toBe("Attempt 1,200 of 9,000");
  expect(iterationLabel(planEntry({ iteration: 0, maxIterations: 9000 }))).toBe("Up to 9,000 attempts");
});

it("a plan that ended looks otherwise if it was stopped by somebody, or could not go on", () => {
  const looks = (["completed", "interrupted", "error", "max_iterations"] as const).map((reason) => planLook({ status: "stopped", reason }));
  expect(looks).toEqual(["completed", "interrupted", "failed", "failed"]);
  expect((["idle", "running", "pausing", "stopping", "paused"] as const).map((status) => planLook({ status }))).toEqual(["idle", "running", "running", "running", "paused"]);
});

it("cost stands beside its limit, and the limit that is nearest fills the bar", () => {
  expect(spentLabel({}, {})).toBe("");
  expect(spentLabel({ usd: "0.42", tokens: 1204, seconds: 125 }, { usd: "5", tokens: 9000, seconds: 600 })).toBe("$0.42\u00a0of\u00a0$5.00 · 1,204\u00a0of\u00a09,000\u00a0tokens · 2\u00a0min\u00a05\u00a0s\u00a0of\u00a010\u00a0min\u00a00\u00a0s");
  expect(spentLabel({ tokens: 10 }, { usd: "5" })).toBe("$0\u00a0of\u00a0$5.00 · 10\u00a0tokens");
  expect([budgetShare({ tokens: 10 }, {}), budgetShare({ usd: "1", tokens: 90 }, { usd: "4", tokens: 100 }), budgetShare({ usd: "9" }, { usd: "4" })]).toEqual([null, 0.9, 1]);
});

it("an agent has its title, and a fallback its reason", () => {
  const titleOf = (name: string) => name.toUpperCase();
  expect(["default", "command:claude", "coder"].map((name) => agentLabel(name, titleOf))).toEqual(["Default agent", "COMMAND:CLAUDE", "CODER"]);
  expect(["command:claude", "coder"].map((name) => agentLabel(name, (unknown) => unknown))).toEqual(["claude", "coder"]);
  expect(fallbackLabel({}, "claude")).toBeNull();
  expect(fallbackLabel({ agentReason: "rate_limited" }, "claude")).toBe("Fallback for claude, which has reached its rate limit");
  expect(fallbackLabel({ agentReason: "requested" }, "claude")).toBe("Chosen instead of claude");
  expect(fallbackLabel({ agentReason: "unavailable" }, null)).toBe("Fallback for the first agent, which is unavailable");
});

describe("the status of a step", () => {
  const facts = { waitsFor: [] as string[], isAsking: false, now: Date.parse("2031-01-01T00:00:00Z") };
  it.each([
    [{ status: "open" }, {}, "Not started"],
    [{ status: "open" }, { waitsFor: ["A", "B", "C", "D", "E"] }, "Waits for “A”, “B”, “C” and 2 more"],
    [{ status: "open", blocked: true }, { waitsFor: ["A"] }, "Blocked by “A”"],
    [{ status: "open", attempts: 1, notBefore: "2031-01-01T00:00:08Z" }, {}, "Tries again in 8\u00a0s"],
    [{ status: "open", attempts: 2, notBefore: "2030-01-01T00:00:08Z" }, {}, "Not finished · 2 attempts so far"],
    [{ status: "running", attempts: 1 }, {}, "Running"],
    [{ status: "running", attempts: 3 }, {}, "Running · attempt 3"],
    [{ status: "running", attempts: 1 }, { isAsking: true }, "Waiting for approval"],
    [{ status: "cancelled" }, {}, "Cancelled"],
  ] as const)("%j, %j", (step, more, words) => expect(stepLabel(stepDetail("a", step), { ...facts, ...more })).toBe(words));
});

describe("an event in words", () => {
  const names = { step: (id: string) => `Step ${id}`, agent: (name: string) => name.toUpperCase() };
  it.each([
    ["step_started", { agent: "coder" }, "“Step a” started with CODER."],
    ["step_retrying", { error: "No luck" }, "“Step a” failed and is tried again: No luck"],
    ["step_skipped", { byPerson: true }, "“Step a” was skipped."],
    ["step_skipped", {}, "“Step a” was skipped because it failed too often."],
    ["paused", { reason: "all_limited" }, "Paused: every agent has reached its rate limit."],
    ["stopped", { reason: "completed" }, "Finished."],
    ["something_new", {}, null],
  ] as const)("%s %j", (type, data, words) => expect(eventLabel({ type, stepId: "a", data }, names)).toBe(words));
});
