import { describe, expect, it } from "vitest";

import { agentLabel, betweenLabel, completedLabel, eventLabel, fallbackLabel, hintLabel, otherCountsLabel, spentParts, statusLabel, stepLabel, triesLabel } from "./plan-labels.ts";
import { planLook } from "./plan-looks.ts";
import { planEntry, stepDetail } from "./testing.ts";

describe("the status of a plan", () => {
  it.each([
    ["idle", undefined, "Not started"],
    ["running", undefined, "Running"],
    ["pausing", "requested", "Pausing after the running steps"],
    ["paused", "requested", "Paused"],
    ["paused", "review", "Paused for your review of “Build”"],
    ["paused", "step_failed", "Paused: “Build” failed"],
    ["paused", "no_progress", "Paused: the last tries completed no step"],
    ["paused", "all_limited", "Paused: every agent has reached its rate limit"],
    ["paused", "budget", "Paused: the budget is used up"],
    ["paused", "access", "Paused: the person who started this plan can no longer write in this chat"],
    ["stopping", "interrupted", "Stopping…"],
    ["stopped", "interrupted", "Stopped"],
    ["stopped", "completed", "Finished"],
    ["stopped", "max_iterations", "Stopped: reached the limit of 1,200 tries"],
    ["stopped", "no_tasks", "Stopped: none of the remaining steps can run"],
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
  expect(hintLabel({ status: "paused", reason: "step_failed" }, { isSolved: true })).toBe("Resume to go on with the plan.");
  expect([hintLabel({ status: "running" }), hintLabel({ status: "stopped", reason: "completed" })]).toEqual([null, null]);
  for (const reason of ["max_iterations", "no_tasks", "error"] as const) expect(hintLabel({ status: "stopped", reason })).toContain("new plan");
});

it("progress counts each step once, the blocked ones too", () => {
  const all = planEntry({ counts: { completed: 3, open: 4, running: 1, blocked: 2, failed: 1 } });
  expect([completedLabel(all), otherCountsLabel(all, { isShort: true })]).toEqual(["3 of 11 steps", "1 failed · 2 blocked"]);
  const ended = planEntry({ counts: { completed: 1, open: 1, failed: 1, skipped: 2, cancelled: 1 } });
  expect([otherCountsLabel(ended, { isShort: false }), otherCountsLabel(ended, { isShort: true })]).toEqual(["1 failed · 2 skipped · 1 cancelled", "1 failed"]);
  expect(otherCountsLabel(planEntry({ counts: { completed: 1 } }), { isShort: false })).toBe("");
});

it("tries are counted in words from 80 % of their limit on", () => {
  const label = (iteration: number, maxIterations: number) => triesLabel(planEntry({ iteration, maxIterations }));
  expect([label(7200, 9000), label(20, 20)]).toEqual(["Tries: 7,200\u00a0of\u00a09,000", "Tries: 20\u00a0of\u00a020"]);
  expect([label(7199, 9000), label(0, 9000), label(0, 0)]).toEqual(["", "", ""]);
});

it("a plan that ended looks otherwise if it was stopped by somebody, or could not go on", () => {
  const looks = (["completed", "interrupted", "error", "max_iterations"] as const).map((reason) => planLook({ status: "stopped", reason }));
  expect(looks).toEqual(["completed", "interrupted", "failed", "failed"]);
  expect((["idle", "running", "pausing", "stopping", "paused"] as const).map((status) => planLook({ status }))).toEqual(["idle", "running", "running", "running", "paused"]);
});

describe("what a plan has spent", () => {
  const texts = (...args: Parameters<typeof spentParts>) => spentParts(...args).map(({ text }) => text.replaceAll("\u00a0", " "));

  it("stands beside its limit", () => {
    expect(texts({}, {})).toEqual([]);
    expect(texts({ usd: "0.42", tokens: 1204, seconds: 125 }, { usd: "5", tokens: 9000, seconds: 600 })).toEqual(["$0.42 of $5.00", "1,204 of 9,000 tokens", "2 min 5 s of 10 min 0 s"]);
    expect(texts({ tokens: 10 }, { usd: "5" })).toEqual(["$0 of $5.00", "10 tokens"]);
  });

  it("has its share in words from 80 % of a limit on", () => {
    expect(texts({ usd: "1.70", tokens: 799, seconds: 0.5 }, { usd: "2", tokens: 1000, seconds: 60 })).toEqual(["$1.70 of $2.00, 85%", "799 of 1,000 tokens", "0 s of 1 min 0 s"]);
    expect(spentParts({ usd: "1.60", tokens: 5 }, { usd: "2", tokens: 10 }).map(({ isNear }) => isNear)).toEqual([true, false]);
    expect(texts({ usd: "1.999" }, { usd: "2" })[0]).toMatch(/, 99%$/);
  });
});

it("a running plan without a running step says what comes next", () => {
  expect(betweenLabel(null)).toBe("Starting the next step…");
  expect(betweenLabel(null, true)).toBe("Waiting to start the next step");
  expect(betweenLabel({ title: "Build", waitMs: 1000 }, true)).toMatch(/^Retrying “Build”/);
  expect(betweenLabel({ title: "Build", waitMs: 19_500 })).toBe("Retrying “Build” in 20\u00a0s");
  expect(betweenLabel({ title: "word ".repeat(20), waitMs: 1 })).toMatch(/^Retrying “[^”]{40,48}…” in 1\u00a0s$/);
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
    [{ status: "open", attempts: 1, notBefore: "2031-01-01T00:00:08Z" }, {}, "Retrying in 8\u00a0s"],
    [{ status: "open", attempts: 2, notBefore: "2030-01-01T00:00:08Z" }, {}, "Not finished · 2 tries so far"],
    [{ status: "running", attempts: 1 }, {}, "Running"],
    [{ status: "running", attempts: 3 }, {}, "Running · try 3"],
    [{ status: "running", attempts: 1 }, { isAsking: true }, "Waiting for approval"],
    [{ status: "cancelled" }, {}, "Cancelled"],
  ] as const)("%j, %j", (step, more, words) => expect(stepLabel(stepDetail("a", step), { ...facts, ...more })).toBe(words));
});

describe("an event in words", () => {
  const names = { step: (id: string) => `Step ${id}`, agent: (name: string) => name.toUpperCase() };
  it.each([
    ["step_started", { agent: "coder" }, "“Step a” started with CODER."],
    ["step_retrying", { error: "No luck" }, "“Step a” failed and will be retried: No luck"],
    ["step_skipped", { byPerson: true }, "“Step a” was skipped."],
    ["step_skipped", {}, "“Step a” was skipped because it failed too often."],
    ["paused", { reason: "all_limited" }, "Paused: every agent has reached its rate limit."],
    ["stopped", { reason: "completed" }, "Finished."],
    ["something_new", {}, null],
  ] as const)("%s %j", (type, data, words) => expect(eventLabel({ type, stepId: "a", data }, names)).toBe(words));
});
