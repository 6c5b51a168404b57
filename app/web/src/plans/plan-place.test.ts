import { expect, test } from "vitest";
import type { Block } from "@khala/client";
import type { MessageView } from "../state/page-model.ts";
import { isPlannedByAnswer, planIndex } from "./plan-place.ts";

const message = (minute: number, role = "user", ...blocks: Block[]) => ({ head: { role, createdAt: at(minute) }, blocks: blocks.map((block, key) => ({ key: String(key), block })) }) as unknown as MessageView;
const at = (minute: number) => new Date(Date.UTC(2031, 2, 14, 10, minute)).toISOString();

test("a plan stands before the first message that is newer, and after all older ones", () => {
  const drawn = [message(1), message(2), message(5)];
  expect([planIndex(drawn, at(0), false), planIndex(drawn, at(3), true), planIndex(drawn, at(9), true), planIndex([], at(1), false)]).toEqual([0, 2, 3, 0]);
});

test("a plan that is older than the first drawn message is drawn with the messages before it", () => {
  expect(planIndex([message(4)], at(3), true)).toBeNull();
});

test("the goal of a plan that an answer made is a question already", () => {
  const made: Block = { type: "tool", toolCallId: "a", tool: "plan_create", state: "completed" };
  expect(isPlannedByAnswer([message(1), message(2, "assistant", made)], at(3))).toBe(true);
  expect(isPlannedByAnswer([message(1), message(2, "assistant", made), message(3), message(4, "assistant")], at(5))).toBe(false);
  expect([isPlannedByAnswer([message(4, "assistant", made)], at(3)), isPlannedByAnswer([], at(3))]).toEqual([false, false]);
});
