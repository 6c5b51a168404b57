import { describe, expect, test } from "vitest";

import { applyPlanPatches, diffPlans, stepsNeededFrom } from "./plans.ts";
import type { PlanState } from "./plans.ts";
import { applyDelta, fromSnapshot } from "./state.ts";
import type { ThreadState } from "./state.ts";
import { FakeThread } from "./testing/fake-thread.ts";
import { random } from "./testing/random.ts";

function updated(thread: FakeThread, state: ThreadState): ThreadState {
  const delta = thread.delta(state.revision ?? 0);
  return delta === null ? state : applyDelta(state, delta).state;
}

function planOf({ plans }: ThreadState, id: string): PlanState {
  const plan = plans.find((one) => one.id === id);
  if (plan === undefined) throw new Error(`There is no plan ${id}.`);
  return plan;
}

describe("the plans of a thread", () => {
  test.each(Array.from({ length: 50 }, (_, seed) => seed))("and steps that were read, with the progress since, are as the server has them (%i)", (seed) => {
    const dice = random(seed);
    const thread = new FakeThread();
    thread.changePlan("plan-1", { id: "a", status: "open" });
    let state = fromSnapshot(thread.snapshot());
    let read = { revision: -1, steps: thread.progressOf("plan-1") };
    for (let round = 0; round < 60; round++) {
      thread.commitSomething(dice);
      if (dice.chance(0.3)) continue;
      state = dice.chance(0.1) ? fromSnapshot(thread.snapshot()) : updated(thread, state);
      expect(state.plans.map(({ id }) => id)).toEqual(thread.planIds);
      const plan = planOf(state, "plan-1");
      if (read.revision < stepsNeededFrom(plan)) read = { revision: state.revision ?? 0, steps: thread.progressOf("plan-1") };
      const newer = plan.steps.filter(({ revision }) => revision > read.revision).map((step) => [step.id, step] as const);
      expect({ ...read.steps, ...Object.fromEntries(newer) }).toMatchObject(thread.progressOf("plan-1"));
    }
  });

  test("need their steps read again only after an edit, a snapshot, or a delta without steps", () => {
    const thread = new FakeThread();
    thread.changePlan("p", { id: "a", status: "open" });
    const first = fromSnapshot(thread.snapshot());
    expect(stepsNeededFrom(planOf(first, "p"))).toBe(thread.revision);
    thread.changePlan("p", { id: "a", status: "running" });
    const second = updated(thread, first);
    expect(stepsNeededFrom(planOf(second, "p"))).toBe(first.revision);
    thread.changePlan("p", ...["a", "b", "c", "d"].map((id) => ({ id, status: "running" as const })));
    const third = updated(thread, second);
    expect([stepsNeededFrom(planOf(third, "p")), planOf(third, "p").steps]).toEqual([thread.revision, []]);
  });
});

test("a change of one step travels as that step", () => {
  const thread = new FakeThread();
  thread.changePlan("p", { id: "a", status: "open" });
  const before = fromSnapshot(thread.snapshot());
  thread.changePlan("p", { id: "a", status: "running" });
  thread.changePlan("q");
  const middle = updated(thread, before);
  thread.changePlan("p", { id: "b", status: "running" });
  const after = updated(thread, middle);
  const patches = diffPlans(middle.plans, after.plans) ?? [];
  expect(patches).toMatchObject([{ id: "q" }, { id: "p", isWhole: false, steps: [{ at: 1, step: { id: "b" } }] }]);
  const applied = applyPlanPatches(middle.plans, patches);
  expect(applied).toEqual(after.plans);
  expect(applied[0]).toBe(middle.plans[0]);
  expect(diffPlans(after.plans, applied)).not.toBeNull();
  expect(diffPlans(after.plans, [...after.plans])).toBeNull();
  expect(() => applyPlanPatches([], patches)).toThrow("another state");
});
