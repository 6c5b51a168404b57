// @vitest-environment jsdom
import { describe, expect, it, vi } from "vitest";

import { diffThread } from "@khala/client";
import type { Block, MessageState, ThreadState } from "@khala/client";
import { countReads } from "./count-reads.svelte.ts";
import { ReactiveThread } from "./thread.svelte.ts";

const TIME = "2026-01-01T00:00:00Z";

function message(id: string, parentId: string | null, changes: Partial<MessageState> = {}): MessageState {
  const role = id.startsWith("q") ? "user" : "assistant";
  return { id, threadId: "t", ...(parentId && { parentId }), role, status: "final", seq: 0, content: text(id), createdAt: TIME, updatedAt: TIME, ...changes };
}

function text(words: string): Block[] {
  return [{ type: "text", text: words }];
}

function state(revision: number, messages: MessageState[], activeLeaf?: string): ThreadState {
  const thread = { id: "t", visibility: "private" as const, revision, createdAt: TIME, updatedAt: TIME, ...(activeLeaf && { activeLeaf }) };
  return { revision, thread, messages, hasMore: false, plans: [] };
}

/** A view, and a way to let it go from state to state as the worker does. */
function view(first: ThreadState): { view: ReactiveThread; to: (next: ThreadState) => void; cut: { is: boolean } } {
  const cut = { is: false };
  const made = new ReactiveThread({ isInterrupted: () => cut.is, authorOf: ({ authorName }) => authorName ?? null });
  let now: ThreadState | null = null;
  const to = (next: ThreadState) => {
    made.applyPatch(diffThread(now, next));
    now = next;
  };
  to(first);
  return { view: made, to, cut };
}

const shown = (made: ReactiveThread) => made.shown.map(({ id }) => id);

const PAIR = [message("a0", null), message("q1", "a0"), message("a1", "q1")];

describe("messages", () => {
  it("grow in place: a word more touches its own part, and nothing else", async () => {
    const writing = message("a1", "q1", { status: "streaming", content: [...text("one"), { type: "notice", code: "resumed", message: "!" }, ...text("two")] });
    const { view: made, to } = view(state(1, [...PAIR.slice(0, 2), writing]));
    const [first, , last] = made.find("a1")?.blocks ?? [];
    const counts = countReads({ first: () => first?.block, last: () => last?.block, blocks: () => made.find("a1")?.blocks, shown: () => made.shown });
    to(state(2, [...PAIR.slice(0, 2), { ...writing, content: [...writing.content.slice(0, 2), ...text("two three")] }]));
    await vi.waitFor(() => expect(counts.of()).toEqual({ first: 1, last: 2, blocks: 1, shown: 1 }));
    expect(made.find("a1")?.text).toBe("onetwo three");
    counts.stop();
  });

  it("keep their parts where some are added, and lose those that are gone", () => {
    const { view: made, to } = view(state(1, PAIR));
    const before = made.find("a1")?.blocks[0];
    const tool: Block = { type: "tool", toolCallId: "c", tool: "grep", state: "running" };
    to(state(2, [...PAIR.slice(0, 2), message("a1", "q1", { content: [...text("a1"), tool] })]));
    expect(made.find("a1")?.blocks).toHaveLength(2);
    expect(made.find("a1")?.blocks[0]).toBe(before);
    to(state(3, [...PAIR.slice(0, 2), message("a1", "q1", { content: [{ ...tool, state: "completed" }] })]));
    expect(made.find("a1")?.blocks.map(({ key }) => key)).toEqual(["0 c"]);
  });

  it("that were withdrawn while they waited are hidden with their question, unless they began", () => {
    const waiting = (id: string, parent: string) => message(id, parent, { status: "streaming", content: [] });
    const active = message("a2", "q2", { status: "streaming" });
    const before = [...PAIR, message("q2", "a1"), active, message("q3", "a2"), waiting("a3", "q3")];
    const { view: made, to } = view(state(1, before));
    made.withdraw("a3");
    expect(shown(made)).toEqual(["a0", "q1", "a1", "q2", "a2", "q3", "a3"]);
    to(state(2, [...before.slice(0, -1), message("a3", "q3", { status: "canceled", content: [] })]));
    expect(shown(made)).toEqual(["a0", "q1", "a1", "q2", "a2"]);
    to(state(3, [...before.slice(0, -1), message("a3", "q3", { status: "canceled" })]));
    expect(shown(made)).toHaveLength(7);
  });

  it("that were reset away are gone, and so is what was known by them", () => {
    const { view: made, to } = view(state(1, [...PAIR, message("q2", "a1", { authorId: "x" }), message("a2", "q2", { status: "streaming" })]));
    expect([made.activeAnswer?.id, made.authorCount]).toEqual(["a2", 1]);
    to(state(2, [message("b0", null)]));
    expect([shown(made), made.activeAnswer, made.authorCount, made.find("a1")]).toEqual([["b0"], null, 0, undefined]);
  });

  it("that are written while nothing can come are interrupted, and no more once it can", () => {
    const { view: made, cut, to } = view(state(1, [...PAIR, message("q2", "a1"), message("a2", "q2", { status: "streaming" })]));
    const standing = (id: string) => made.find(id)?.displayStatus;
    cut.is = true;
    expect([standing("a1"), standing("a2")]).toEqual(["done", "interrupted"]);
    expect(made.activeAnswer?.id).toBe("a2");
    cut.is = false;
    expect(standing("a2")).toBe("writing");
    to(state(2, [...PAIR, message("q2", "a1"), message("a2", "q2", { status: "canceled" })]));
    expect([standing("a2"), made.activeAnswer]).toEqual(["stopped", null]);
  });
});

describe("the messages of a plan's step", () => {
  const step = { planId: "p", stepId: "s", attempt: 1 };
  const TASK = message("q9", null, { step });
  const WORK = message("a9", "q9", { step, status: "streaming" });

  it("are apart from the conversation: in no branch, and no active answer", () => {
    const { view: made, to } = view(state(1, PAIR, "a1"));
    to(state(2, [...PAIR, TASK, WORK], "a1"));
    expect([shown(made), made.activeAnswer, made.parent]).toEqual([["a0", "q1", "a1"], null, undefined]);
    expect(made.find("q1")?.versions).toEqual(["q1"]);
    expect(made.stepAnswers.map(({ id }) => id)).toEqual(["a9"]);
    to(state(3, [TASK, WORK]));
    expect([shown(made), made.end]).toEqual([[], null]);
  });
});

describe("the branch that is shown", () => {
  const FORK = [...PAIR, message("a1b", "q1"), message("q2", "a1b"), message("a2", "q2")];

  it("is the thread's active one at first, to its end", () => {
    expect(shown(view(state(1, FORK)).view)).toEqual(["a0", "q1", "a1b", "q2", "a2"]);
    expect(shown(view(state(1, FORK, "a1")).view)).toEqual(["a0", "q1", "a1"]);
    expect(shown(view(state(1, FORK, "q2")).view)).toEqual(["a0", "q1", "a1b", "q2", "a2"]);
  });

  it("tells which versions there are of what is in it", () => {
    const { view: made } = view(state(1, FORK));
    expect(made.find("a1b")?.versions).toEqual(["a1", "a1b"]);
    expect(made.find("q1")?.versions).toEqual(["q1"]);
  });

  it("goes on with what comes below it, and stays where others go elsewhere", () => {
    const { view: made, to } = view(state(1, PAIR, "a1"));
    to(state(2, [...PAIR, message("q2", "a1"), message("a2", "q2")], "a2"));
    expect(made.end).toBe("a2");
    to(state(3, [...PAIR, message("q2", "a1"), message("a2", "q2"), message("q2b", "a1"), message("a2b", "q2b")], "a2b"));
    expect(shown(made)).toEqual(["a0", "q1", "a1", "q2", "a2"]);
  });

  it("goes to what the person has asked for as soon as that is there", () => {
    const { view: made, to } = view(state(1, PAIR, "a1"));
    made.awaitMessage("a1b");
    expect(made.end).toBe("a1");
    to(state(2, [...PAIR, message("a1b", "q1")], "a1b"));
    expect(shown(made)).toEqual(["a0", "q1", "a1b"]);
    to(state(3, [...PAIR, message("a1b", "q1"), message("a1c", "q1")], "a1c"));
    expect(made.end).toBe("a1b");
  });

  it("goes where the person chooses, and stays there", () => {
    const { view: made, to } = view(state(1, FORK, "a2"));
    made.showBranch("a1");
    expect(shown(made)).toEqual(["a0", "q1", "a1"]);
    to(state(2, [...FORK, message("q3", "a2")], "q3"));
    expect(made.end).toBe("a1");
  });

  it("is the active one again where what was shown is gone", () => {
    const { view: made, to } = view(state(1, FORK, "a2"));
    made.showBranch("a1");
    to(state(2, [message("b0", null), message("b1", "b0")], "b1"));
    expect(made.end).toBe("b1");
  });

  it("is named in a send only where the server would follow another", () => {
    const { view: made } = view(state(1, FORK, "a2"));
    expect(made.parent).toBeUndefined();
    made.showBranch("a1");
    expect(made.parent).toBe("a1");
  });

  it("stays in order when older messages come before it", () => {
    const { view: made, to } = view({ ...state(1, PAIR.slice(1)), hasMore: true });
    expect(shown(made)).toEqual(["q1", "a1"]);
    to(state(1, PAIR));
    expect(shown(made)).toEqual(["a0", "q1", "a1"]);
  });
});
