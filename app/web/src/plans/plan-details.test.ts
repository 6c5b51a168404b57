import { describe, expect, it, vi } from "vitest";

import { ApiError } from "@khala/client";
import type { StepDetail } from "@khala/client";
import { PlanDetails, findReasonStep, reasonStepId } from "./plan-details.svelte.ts";
import type { CallApi } from "./plan-details.svelte.ts";
import { planEntry, planState, stepDetail } from "./testing.ts";

function server(items: StepDetail[]) {
  const asked: string[] = [];
  const state = { items, error: null as Error | null };
  const send: CallApi = <T>(_: string, path: string) => {
    asked.push(path);
    if (state.error) return Promise.reject(state.error);
    return Promise.resolve((path.endsWith("/steps") ? { items: state.items } : { ...planEntry(), goal: "g", config: { agents: ["default"] } }) as T);
  };
  return { send, state, reads: () => asked.filter((path) => path.endsWith("/steps")).length };
}

describe("the steps of a plan", () => {
  it("are read once, and take over progress that is newer than they are", async () => {
    const { send, reads } = server([stepDetail("a", { status: "running", error: "old" }), stepDetail("b")]);
    const details = new PlanDetails("p", send);
    const before = planState(planEntry({ counts: { running: 1, open: 1 } }));
    expect(details.steps(before)).toBeNull();
    await details.update(before, 7);
    const progress = { planId: "p", id: "a", status: "completed" as const, attempts: 1 };
    const stale = planState(before.entry, { steps: [{ ...progress, revision: 7 }] });
    const newer = planState(before.entry, { steps: [{ ...progress, revision: 8 }] });
    expect(details.steps(stale)?.[0]?.status).toBe("running");
    expect(details.steps(newer)?.map(({ status, error, planned }) => [status, error, planned.title])).toEqual([["completed", undefined, "Step a"], ["open", undefined, "Step b"]]);
    await details.update(newer, 8);
    expect(reads()).toBe(1);
  });

  it("are read again after an edit, after a gap, and when other steps are blocked than before", async () => {
    const { send, state, reads } = server([stepDetail("a"), stepDetail("b")]);
    const details = new PlanDetails("p", send);
    await details.update(planState(planEntry()), 5);
    await details.update(planState(planEntry({ editedRevision: 6, revision: 6 })), 6);
    expect(reads()).toBe(2);
    await details.update(planState(planEntry({ editedRevision: 6, revision: 7 }), { stepsSince: 7 }), 7);
    expect(reads()).toBe(3);
    state.items = [stepDetail("a", { status: "failed" }), stepDetail("b", { blocked: true })];
    const blocked = planState(planEntry({ editedRevision: 6, revision: 8, counts: { failed: 1, open: 1, blocked: 1 } }), { stepsSince: 7 });
    await details.update(blocked, 8);
    await details.update(blocked, 8);
    expect([reads(), details.steps(blocked)?.[1]?.blocked]).toEqual([4, true]);
  });

  it("say when they can’t be read, and can be read afterwards", async () => {
    const { send, state } = server([stepDetail("a")]);
    const details = new PlanDetails("p", send);
    state.error = new ApiError(503, {});
    await details.update(planState(planEntry()), 5);
    expect([details.hasFailed, details.steps(planState(planEntry()))]).toEqual([true, null]);
    state.error = null;
    await details.update(planState(planEntry()), 5);
    expect([details.hasFailed, details.steps(planState(planEntry()))?.length]).toEqual([false, 1]);
  });
});

it("events are read from the newest known one on, once at a time", async () => {
  const send = vi.fn(() => Promise.resolve({ items: [{ planId: "p", seq: 90, type: "paused", at: "", data: {} }] }));
  const details = new PlanDetails("p", send as unknown as CallApi);
  await Promise.all([details.readEvents(90), details.readEvents(90)]);
  await details.readEvents(90);
  await details.readEvents(95);
  expect(send.mock.calls).toEqual([["GET", "/api/plans/p/events?after=40"], ["GET", "/api/plans/p/events?after=90"]]);
});

it("a pause for a review or a failure is about the last step that ended so", () => {
  const event = (seq: number, type: string, stepId?: string) => ({ planId: "p", seq, type, at: "", data: {}, ...(stepId && { stepId }) });
  const events = [event(1, "step_completed", "a"), event(2, "step_failed", "b"), event(3, "step_completed", "c"), event(4, "paused")];
  expect(reasonStepId(planState(planEntry({ status: "paused", reason: "review" })), events)).toBe("c");
  expect(reasonStepId(planState(planEntry({ status: "paused", reason: "step_failed" })), events)).toBe("b");
  expect(reasonStepId(planState(planEntry({ status: "stopped", reason: "error" })), events)).toBe("b");
  expect(reasonStepId(planState(planEntry({ status: "stopped", reason: "no_tasks" })), events)).toBeNull();
  expect(reasonStepId(planState(planEntry({ status: "paused", reason: "budget" })), events)).toBeNull();
  expect(reasonStepId(planState(planEntry({ status: "running" })), events)).toBeNull();
});

describe("the step that a pause is about", () => {
  const event = (seq: number, type: string, stepId?: string) => ({ planId: "p", seq, type, at: "", data: {}, ...(stepId && { stepId }) });
  const paused = planState(planEntry({ status: "paused", reason: "step_failed", eventSeq: 4 }));
  const failed = event(2, "step_failed", "b");
  const stepsOf = (states: Record<string, StepDetail["status"]>) => Object.entries(states).map(([id, status]) => stepDetail(id, { status }));
  const find = (...args: Parameters<typeof findReasonStep>) => findReasonStep(...args)?.id ?? null;

  it("is the one that the newest events name, whether or not it is still failed", () => {
    expect(find(paused, stepsOf({ a: "failed", b: "failed", c: "failed" }), [failed, event(4, "paused")], true)).toBe("b");
    expect(find(paused, stepsOf({ a: "failed", b: "open" }), [failed, event(4, "step_reopened", "b")], true)).toBe("b");
  });

  it("is the last failed one if no event names it, or only one of an earlier failure, and nothing more is read", () => {
    const steps = stepsOf({ a: "failed", b: "completed", c: "failed", d: "open" });
    expect([find(paused, steps, [event(4, "paused")], true), find(paused, steps, [], true), find(paused, steps, [failed], true)]).toEqual(["c", "c", "c"]);
    expect([find(paused, steps, [], false), find(paused, stepsOf({ a: "open" }), [], true), find(paused, [], [], true)]).toEqual([null, null, null]);
  });

  it("is not guessed for other reasons", () => {
    const steps = stepsOf({ a: "failed" });
    expect(find(planState(planEntry({ status: "paused", reason: "review" })), steps, [], true)).toBeNull();
    expect(find(planState(planEntry({ status: "paused", reason: "budget" })), steps, [], true)).toBeNull();
  });
});

it("the step of a reason is known once the steps and the newest event were read, or could not be", async () => {
  const { send } = server([stepDetail("a", { status: "failed" })]);
  const details = new PlanDetails("p", (method, path) => (path.includes("/events") ? Promise.reject(new ApiError(503, {})) : send(method, path)));
  const paused = planState(planEntry({ status: "paused", reason: "step_failed", eventSeq: 4 }));
  expect(details.isReasonKnown(paused)).toBe(false);
  await details.update(paused, 7);
  expect(details.isReasonKnown(paused)).toBe(false);
  await details.readEvents(4);
  expect(details.isReasonKnown(paused)).toBe(true);
  expect(details.isReasonKnown(planState({ ...paused.entry, eventSeq: 5 }))).toBe(false);
});
