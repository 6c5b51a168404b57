import { expect, test } from "vitest";

import type { PlanState } from "@khala/client";
import type { MessageView } from "../state/page-model.ts";
import { planEntry, planState } from "../plans/testing.ts";
import { isDefaultWelcome, withoutWelcome } from "./welcome.ts";

const CREATED = "2026-01-02T03:04:05.678Z";
const thread = { id: "t", visibility: "private" as const, revision: 2, createdAt: CREATED, updatedAt: CREATED };

function message(id: string, head: Partial<MessageView["head"]> = {}): MessageView {
  const whole: MessageView["head"] = { id, threadId: "t", role: "assistant", status: "final", seq: 0, createdAt: CREATED, updatedAt: CREATED, ...head };
  return { id, head: whole, blocks: [{ key: "0", block: { type: "text", text: "Hi!" } }], displayStatus: "done", error: null, finish: null, step: null, memoryCount: 0, toolStartedAt: {}, versions: [id], author: null, text: "Hi!", files: [] };
}

const question = message("q", { role: "user", parentId: "w" });
const shown = (first: MessageView, hasQuestions = true, plans: readonly PlanState[] = []): string[] => withoutWelcome({ messages: hasQuestions ? [first, question] : [first], thread, hasQuestions, plans }).map(({ id }) => id);

test("the welcome is shown until the first question or plan", () => {
  expect(withoutWelcome(null)).toEqual([]);
  expect(shown(message("w"), false)).toEqual(["w"]);
  expect(shown(message("w"))).toEqual(["q"]);
  expect(shown(message("w"), false, [planState(planEntry())])).toEqual([]);
});

test.each([
  ["an answer", { runId: "r" }],
  ["what somebody has appended", { createdAt: "2026-01-02T03:04:06.000Z" }],
  ["what a bot with a name has said", { authorName: "Bot" }],
  ["a message that follows one which is not loaded", { parentId: "p" }],
  ["a question", { role: "user" }],
] as const)("%s is never taken for it", (_, head) => {
  expect(shown(message("m", head))).toEqual(["m", "q"]);
});

test("only the server's own text is said in the person's language", () => {
  const said = (text: string, head: Partial<MessageView["head"]> = {}): boolean => isDefaultWelcome({ ...message("w", head), text });
  expect(said("Hi! Ask me anything. Your conversation is saved, even if you close this page.")).toBe(true);
  expect(said("Hi! I am the assistant of the library.")).toBe(false);
  expect(said("Hi! Ask me anything. Your conversation is saved, even if you close this page.", { role: "user" })).toBe(false);
});
