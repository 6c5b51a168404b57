import { describe, expect, test } from "vitest";

import type { AccountDelta, AccountFrame, DeltaFrame, Invitation, ThreadListEntry, Message, Part } from "./frames.ts";
import { EMPTY_THREAD, EMPTY_THREAD_LIST, activeAnswer, applyAccountFrame, applyDelta, fromSnapshot, answerStatus, withOlderMessages, withProgress } from "./state.ts";
import type { ThreadState } from "./state.ts";
import { textOf } from "./fold.ts";
import { random } from "./testing/random.ts";
import { FakeThread, headOf } from "./testing/fake-thread.ts";

const FINISH = { kind: "finish", data: { reason: "stop", usage: { inputTokens: 1, outputTokens: 1 } } } as const;
const say = (text: string): Pick<Part, "kind" | "data"> => ({ kind: "text-delta", data: { text } });

/** A thread with an answer under way, and what a client knows of it. */
function begun(): { thread: FakeThread; answer: string; state: ThreadState } {
  const thread = new FakeThread();
  const { answer } = thread.ask("Why?");
  return { thread, answer, state: fromSnapshot(thread.snapshot()) };
}

function deltaOf(thread: FakeThread, since: number): DeltaFrame {
  const delta = thread.delta(since);
  if (delta === null) throw new Error("Nothing has changed.");
  return delta;
}

function answerOf(state: ThreadState, id: string): ThreadState["messages"][number] {
  const message = state.messages.find((one) => one.id === id);
  if (message === undefined) throw new Error(`The message ${id} is not known.`);
  return message;
}

describe("a delta", () => {
  test("that follows is applied, and the revision goes on", () => {
    const { thread, answer, state } = begun();
    thread.appendParts(answer, say("Be"), say("cause."));
    const after = applyDelta(state, deltaOf(thread, state.revision ?? 0));
    expect(after.outcome).toBe("applied");
    expect(after.state.revision).toBe(thread.revision);
    expect(after.state.thread?.revision).toBe(thread.revision);
    expect(textOf(answerOf(after.state, answer))).toBe("Because.");
  });

  test("that is known already is stale and changes nothing", () => {
    const { thread, answer, state } = begun();
    thread.appendParts(answer, say("Once"));
    const frame = deltaOf(thread, state.revision ?? 0);
    const once = applyDelta(state, frame).state;
    expect(applyDelta(once, frame)).toEqual({ state: once, outcome: "stale" });
  });

  test("before any snapshot, or with something missing before it, is a gap", () => {
    const { thread, answer, state } = begun();
    thread.appendParts(answer, say("one"));
    const middle = thread.revision;
    thread.appendParts(answer, say("two"));
    expect(applyDelta(EMPTY_THREAD, deltaOf(thread, middle)).outcome).toBe("gap");
    expect(applyDelta(state, deltaOf(thread, middle))).toEqual({ state, outcome: "gap" });
  });

  test("that reaches behind what is known is a gap too: it does not follow", () => {
    const { thread, answer, state } = begun();
    thread.appendParts(answer, say("one"));
    const known = applyDelta(state, deltaOf(thread, state.revision ?? 0)).state;
    thread.appendParts(answer, say("two"));
    expect(applyDelta(known, deltaOf(thread, state.revision ?? 0)).outcome).toBe("gap");
  });

  test("whose parts leave a hole is broken", () => {
    const { thread, answer, state } = begun();
    thread.appendParts(answer, say("one"), say("two"));
    const frame = deltaOf(thread, state.revision ?? 0);
    expect(applyDelta(state, { ...frame, parts: frame.parts.slice(1) })).toEqual({ state, outcome: "broken" });
  });

  test("whose answer has ended with more parts than came is broken", () => {
    const { thread, answer, state } = begun();
    thread.appendParts(answer, say("one"), FINISH);
    const frame = deltaOf(thread, state.revision ?? 0);
    expect(applyDelta(state, { ...frame, parts: frame.parts.slice(0, 1) }).outcome).toBe("broken");
  });

  test("with parts of a message that nobody told of is broken, unless it may be further up", () => {
    const { thread, answer, state } = begun();
    thread.appendParts(answer, say("one"));
    const frame = { ...deltaOf(thread, state.revision ?? 0), messages: [] };
    const without = { ...state, messages: [] };
    expect(applyDelta(without, frame).outcome).toBe("broken");
    expect(applyDelta({ ...without, hasMore: true }, frame).outcome).toBe("applied");
  });

  test("counts each part once, in any order and however often it has it", () => {
    const { thread, answer, state } = begun();
    thread.appendParts(answer, say("a"), say("b"), say("c"));
    const frame = deltaOf(thread, state.revision ?? 0);
    const after = applyDelta(state, { ...frame, parts: [...frame.parts.toReversed(), ...frame.parts] });
    expect(textOf(answerOf(after.state, answer))).toBe("abc");
    expect(answerOf(after.state, answer).seq).toBe(3);
  });

  test("learns finish, failure, step and the beginnings of tools from parts", () => {
    const { thread, answer, state } = begun();
    const step = { step: 2, maxSteps: 20, toolCount: 1 };
    thread.appendParts(answer, { kind: "step", data: step }, { kind: "tool-status", data: { toolCallId: "a", state: "running" } });
    thread.appendParts(answer, { kind: "error", data: { code: "timeout", message: "m" } }, FINISH);
    const known = answerOf(applyDelta(state, deltaOf(thread, state.revision ?? 0)).state, answer);
    expect(known).toMatchObject({ currentStep: step, failure: { code: "timeout" }, finish: FINISH.data });
    expect(known.toolStartedAt?.a).toBe(Date.parse(new Date(Date.UTC(2031, 0, 1) + 3000).toISOString()));
  });

  test("with new messages in the order of their changes keeps them in the order in which they were made", () => {
    const { thread, answer, state } = begun();
    thread.appendParts(answer, FINISH);
    const { answer: second } = thread.ask("And then?");
    thread.ask("Another", answer);
    thread.appendParts(second, say("late"));
    const after = applyDelta(state, deltaOf(thread, state.revision ?? 0)).state;
    expect(after.messages.map(({ id }) => id)).toEqual(thread.ids);
  });

  test("leaves out the head of a message above the page that is held", () => {
    const { thread, answer } = begun();
    const later = thread.ask("Later?");
    const page = fromSnapshot(thread.snapshot(2));
    thread.appendParts(answer, say("up there"));
    const after = applyDelta(page, deltaOf(thread, page.revision ?? 0));
    expect(after.outcome).toBe("applied");
    expect(after.state.messages.map(({ id }) => id)).toEqual([later.question, later.answer]);
  });
});

describe("whatever is lost, doubled and mixed up on the way", () => {
  test.each(Array.from({ length: 150 }, (_, seed) => seed))("no text is lost and none is doubled (%i)", (seed) => {
    const dice = random(seed);
    const thread = new FakeThread();
    let state = EMPTY_THREAD;
    let past: DeltaFrame[] = [];
    const heal = (): void => {
      const frame = state.revision === null ? null : thread.delta(state.revision);
      if (state.revision === null || dice.chance(0.2)) state = fromSnapshot(thread.snapshot());
      else if (frame) state = applyDelta(state, frame).state;
    };
    for (let round = 0; round < 60; round++) {
      const from = Math.max(1, thread.revision - dice.below(3));
      thread.commitSomething(dice);
      const sent = thread.delta(from);
      if (sent) past = [...past.slice(-8), sent];
      for (let copies = dice.below(3); copies > 0; copies--) {
        const { state: after, outcome } = applyDelta(state, dice.pick(past));
        state = after;
        if (outcome === "gap") heal();
      }
      const { texts } = thread;
      expect(state.messages.filter((message) => !texts[message.id]?.startsWith(textOf(message)))).toEqual([]);
    }
    heal();
    expect(Object.fromEntries(state.messages.map(({ id, content }) => [id, content]))).toEqual(thread.contents);
  });
});

test("older messages go before those that are held, and each is there once", () => {
  const { thread } = begun();
  thread.ask("Later?");
  const page = fromSnapshot(thread.snapshot(2));
  expect(page.hasMore).toBe(true);
  const whole = thread.snapshot().messages;
  const all = withOlderMessages(page, { items: whole.slice(0, 3), hasMore: false });
  expect(all.messages.map(({ id }) => id)).toEqual(thread.ids);
  expect(all.hasMore).toBe(false);
});

test("what a snapshot doesn't say of an answer's progress is learned from parts, and what was heard since stands", () => {
  const { answer, state } = begun();
  const at = "2031-01-01T00:00:00Z";
  const common = { runId: "r", messageId: answer, createdAt: at };
  const parts: Part[] = [
    { ...common, seq: 0, kind: "step", data: { step: 1, maxSteps: 9, toolCount: 1 } },
    { ...common, seq: 1, kind: "tool-status", data: { toolCallId: "a", state: "running" } },
  ];
  const known = answerOf(withProgress(state, answer, parts), answer);
  expect(known.currentStep?.step).toBe(1);
  expect(known.toolStartedAt).toEqual({ a: Date.parse(at) });
  const withNewer = { ...state, messages: state.messages.map((message) => ({ ...message, currentStep: { step: 2, maxSteps: 9, toolCount: 1 }, toolStartedAt: { a: 5 } })) };
  expect(answerOf(withProgress(withNewer, answer, parts), answer)).toMatchObject({ currentStep: { step: 2 }, toolStartedAt: { a: 5 } });
});

test("how a message stands: a finish outranks the row's status", () => {
  const base = { usage: { inputTokens: 0, outputTokens: 0 } };
  expect(answerStatus({ status: "streaming" })).toBe("writing");
  expect(answerStatus({ status: "draft" })).toBe("writing");
  expect(answerStatus({ status: "final" })).toBe("done");
  expect(answerStatus({ status: "canceled" })).toBe("stopped");
  expect(answerStatus({ status: "error" })).toBe("failed");
  expect(answerStatus({ status: "streaming", finish: { ...base, reason: "stop" } })).toBe("done");
  expect(answerStatus({ status: "streaming", finish: { ...base, reason: "canceled" } })).toBe("stopped");
  expect(answerStatus({ status: "final", finish: { ...base, reason: "error" } })).toBe("failed");
});

test("a head that is behind what was folded tells of the status alone", () => {
  const { thread, answer, state } = begun();
  thread.appendParts(answer, say("one"), say(" two"));
  const known = applyDelta(state, deltaOf(thread, state.revision ?? 0)).state;
  const { content, ...knownHead } = answerOf(known, answer);
  const head: Message = { ...knownHead, status: "draft" };
  expect(content).toHaveLength(1);
  const frame = (seq: number, text: string): DeltaFrame => {
    const from = known.revision ?? 0;
    const content = [{ type: "text" as const, text }];
    return { type: "delta", threadId: head.threadId, from, revision: from + 1, messages: [{ ...head, seq, content }], parts: [] };
  };
  const { seq } = answerOf(known, answer);
  const behind = answerOf(applyDelta(known, frame(seq - 1, "one")).state, answer);
  expect([textOf(behind), behind.seq, behind.status]).toEqual(["one two", seq, "draft"]);
  const ahead = answerOf(applyDelta(known, frame(seq, "one, two")).state, answer);
  expect(textOf(ahead)).toBe("one, two");
});

test("of two answers that are being written the newer one is the active one", () => {
  const { thread, answer } = begun();
  const second = thread.ask("And why that?").answer;
  expect(activeAnswer(fromSnapshot(thread.snapshot()))?.id).toBe(second);
  thread.appendParts(second, FINISH);
  expect(activeAnswer(fromSnapshot(thread.snapshot()))?.id).toBe(answer);
});

test("the active answer is the newest one that is being written", () => {
  const { thread, answer, state } = begun();
  expect(activeAnswer(state)?.id).toBe(answer);
  thread.appendParts(answer, FINISH);
  expect(activeAnswer(fromSnapshot(thread.snapshot()))).toBeNull();
});

describe("the account's list", () => {
  const entry = (id: string, unread = false): ThreadListEntry => {
    const at = "2031-01-01T00:00:00Z";
    return { thread: { id, visibility: "private", revision: 1, createdAt: at, updatedAt: at }, role: "owner", unread, running: false, needsApproval: false, changedAt: at };
  };
  const whole: AccountFrame = { type: "account", revision: 5, whole: true, threads: [entry("a"), entry("b")], hasMore: false };
  const change = (from: number, revision: number): AccountDelta => ({ type: "account", from, revision, threads: [entry("b", true), entry("c")], removed: ["a"] });

  test("is taken whole, and goes on by deltas", () => {
    const { list } = applyAccountFrame(EMPTY_THREAD_LIST, whole);
    const after = applyAccountFrame(list, change(5, 7));
    expect(after.outcome).toBe("applied");
    expect([...after.list.entries.keys()]).toEqual(["b", "c"]);
    expect(after.list.entries.get("b")?.unread).toBe(true);
    expect(after.list.revision).toBe(7);
  });

  test("has all invitations that are open, until a frame tells of others", () => {
    const invitation: Invitation = { threadId: "x", role: "editor", createdAt: "2031-01-01T00:00:00Z" };
    const { list } = applyAccountFrame(EMPTY_THREAD_LIST, { ...whole, invitations: [invitation] });
    expect(list.invitations).toEqual([invitation]);
    const kept = applyAccountFrame(list, change(5, 7)).list;
    expect(kept.invitations).toEqual([invitation]);
    expect(applyAccountFrame(kept, { ...change(7, 8), invitations: [] }).list.invitations).toEqual([]);
    expect(applyAccountFrame(kept, whole).list.invitations).toEqual([]);
  });

  test("knows what is stale and what is missing", () => {
    const { list } = applyAccountFrame(EMPTY_THREAD_LIST, whole);
    expect(applyAccountFrame(EMPTY_THREAD_LIST, change(5, 7)).outcome).toBe("gap");
    expect(applyAccountFrame(list, change(4, 5)).outcome).toBe("stale");
    expect(applyAccountFrame(list, change(6, 7)).outcome).toBe("gap");
    expect(applyAccountFrame(list, change(3, 9)).outcome).toBe("gap");
  });
});

test("a message without content in a snapshot has none yet", () => {
  const { thread } = begun();
  const frame = thread.snapshot();
  const bare = frame.messages.map(headOf);
  expect(fromSnapshot({ ...frame, messages: bare }).messages.every(({ content }) => content.length === 0)).toBe(true);
});
