import { describe, expect, test } from "vitest";

import { applyPatch, diffThread } from "./patches.ts";
import type { PlanState } from "./plans.ts";
import type { MessageState, ThreadState } from "./state.ts";
import { EMPTY_THREAD, applyDelta, fromSnapshot, withOlderMessages } from "./state.ts";
import { random } from "./testing/random.ts";
import { FakeThread } from "./testing/fake-thread.ts";

const across = <T>(value: T): T => structuredClone(value);

describe("what was told of what changed gives the state that it was of", () => {
  test.each(Array.from({ length: 100 }, (_, seed) => seed))("whatever happens in a thread (%i)", (seed) => {
    const dice = random(seed);
    const thread = new FakeThread();
    const other = new FakeThread("00000000-0000-7000-8000-000000000002");
    let inside: ThreadState = EMPTY_THREAD;
    let told: ThreadState | null = null;
    let page: ThreadState = EMPTY_THREAD;
    for (let round = 0; round < 60; round++) {
      thread.commitSomething(dice);
      const delta = inside.revision === null || inside.thread?.id !== thread.id ? null : thread.delta(inside.revision);
      if (dice.chance(0.05)) inside = fromSnapshot(other.snapshot());
      else if (delta === null || dice.chance(0.1)) inside = fromSnapshot(thread.snapshot(1 + dice.below(30)));
      else inside = applyDelta(inside, delta).state;
      if (dice.chance(0.1) && inside.hasMore) inside = withOlderMessages(inside, { items: thread.snapshot().messages.slice(0, -inside.messages.length), hasMore: false });
      if (dice.chance(0.4)) continue; // several changes travel as one
      page = applyPatch(page, across(diffThread(told, inside)));
      told = inside;
      expect(page).toStrictEqual(inside);
    }
  });

  test("whatever the two states are", () => {
    const dice = random(7);
    for (let round = 0; round < 300; round++) {
      const [before, after] = [anyState(dice), anyState(dice)];
      expect(applyPatch(before, across(diffThread(before, after)))).toStrictEqual(after);
      expect(applyPatch(anyState(dice), across(diffThread(null, after)))).toStrictEqual(after);
    }
  });
});

test("text that grew travels as what it grew by, and nothing else does", () => {
  const thread = new FakeThread();
  const { answer } = thread.ask("Why?");
  thread.appendParts(answer, { kind: "notice", data: { code: "c", message: "m" } }, { kind: "text-delta", data: { text: "Because" } });
  const before = fromSnapshot(thread.snapshot());
  thread.appendParts(answer, { kind: "text-delta", data: { text: " of it." } });
  const delta = thread.delta(before.revision ?? 0);
  if (delta === null) throw new Error("Nothing has changed.");
  const after = applyDelta(before, delta).state;
  const patch = diffThread(before, after);
  expect(patch.order).toBeUndefined();
  expect(patch.whole).toBe(false);
  expect(patch.messages.map(({ id, blocks }) => [id, blocks])).toEqual([[answer, [{ at: 1, append: " of it." }]]]);
  const page = applyPatch(before, across(patch));
  expect(page.messages[0]).toBe(before.messages[0]);
  expect(page.messages[1]?.content[0]).toBe(before.messages[1]?.content[0]);
});

test("a snapshot that says what is known already names no message", () => {
  const thread = new FakeThread();
  thread.ask("Why?");
  const [before, after] = [fromSnapshot(thread.snapshot()), fromSnapshot(across(thread.snapshot()))];
  expect(diffThread(before, after).messages).toEqual([]);
});

test("a patch of another state is refused, not made fit", () => {
  const thread = new FakeThread();
  const before = fromSnapshot(thread.snapshot());
  thread.ask("Why?");
  const after = fromSnapshot(thread.snapshot());
  const patch = diffThread(before, after);
  expect(() => applyPatch(before, { ...patch, messages: [] })).toThrow("another state");
  const [message] = patch.messages;
  if (message === undefined) throw new Error("The patch is empty.");
  expect(() => applyPatch(before, { ...patch, messages: [{ ...message, blocks: [{ at: 0, append: "x" }] }] })).toThrow("another state");
  const longer = patch.messages.map((one) => (one === message ? { ...one, length: one.length + 1 } : one));
  expect(() => applyPatch(before, { ...patch, messages: longer })).toThrow("another state");
});

test("text that did not grow out of what was there travels whole", () => {
  const thread = new FakeThread();
  const { answer } = thread.ask("Why?");
  thread.appendParts(answer, { kind: "text-delta", data: { text: "Because" } });
  const before = fromSnapshot(thread.snapshot());
  const said = (text: string): ThreadState => ({
    ...before,
    messages: before.messages.map((message) => (message.id === answer ? { ...message, content: [{ type: "text" as const, text }] } : message)),
  });
  for (const text of ["It was otherwise.", "Becaus", "because of it"]) {
    const patch = diffThread(before, said(text));
    expect(patch.messages.map(({ blocks }) => blocks)).toEqual([[{ at: 0, block: { type: "text", text } }]]);
    expect(applyPatch(before, across(patch))).toStrictEqual(said(text));
  }
});

function anyState(dice: ReturnType<typeof random>): ThreadState {
  const ids = ["a", "b", "c", "d"].filter(() => dice.chance(0.7)).sort(() => dice.next() - 0.5);
  const at = "2031-01-01T00:00:00Z";
  const thread = { id: "t", visibility: "private", revision: dice.below(3), createdAt: at, updatedAt: at } as const;
  return { revision: dice.below(5), thread, hasMore: dice.chance(0.5), messages: ids.map((id) => anyMessage(id, dice)), plans: ["p2", "p1"].filter(() => dice.chance(0.6)).map((id) => anyPlan(id, dice)) };
}

function anyPlan(id: string, dice: ReturnType<typeof random>): PlanState {
  const thread = new FakeThread();
  thread.changePlan(id);
  const [plan] = fromSnapshot(thread.snapshot()).plans;
  if (plan === undefined) throw new Error("There is no plan.");
  const steps = ["a", "b", "c"].filter(() => dice.chance(0.5)).map((step) => ({ planId: id, id: step, status: "open" as const, attempts: dice.below(2), revision: dice.below(3) }));
  return { ...plan, stepsSince: dice.below(2), steps };
}

function anyMessage(id: string, dice: ReturnType<typeof random>): MessageState {
  const at = "2031-01-01T00:00:00Z";
  const content = Array.from({ length: dice.below(4) }, () =>
    dice.chance(0.6)
      ? ({ type: "text", text: "😀ab".repeat(dice.below(4)) } as const)
      : ({ type: "tool", toolCallId: dice.pick(["x", "y"]), tool: "grep", state: dice.pick(["running", "completed"] as const), output: { n: [dice.below(2)] } } as const),
  );
  const extra = dice.chance(0.3) ? { currentStep: { step: dice.below(3), maxSteps: 9, toolCount: 1 } } : {};
  return { id, threadId: "t", role: "user", status: "final", seq: dice.below(3), createdAt: at, updatedAt: at, content, ...extra };
}
