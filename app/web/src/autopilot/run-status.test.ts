import { describe, expect, test } from "vitest";

import type { Block } from "@khala/client";
import { duration, fallbackOf, budgetShareOf, statusOf, stepOf, uncountedText } from "./run-status.ts";

const views = (...blocks: Block[]) => blocks.map((block, index) => ({ key: `${index}`, block }));
const call = (state: "queued" | "running" | "completed" | "blocked", step = 1): Block => ({ type: "tool", toolCallId: `${step}${state}`, tool: "glob", step, state });
const text = (words: string): Block => ({ type: "text", text: words });

describe("the status", () => {
  test.each([
    ["thinking", []],
    ["writing", [text("so")]],
    ["running tools", [text("so"), call("running")]],
    ["running tools", [call("queued"), call("blocked")]],
    ["waiting for approval", [call("completed"), call("blocked")]],
    ["thinking", [call("completed")]],
    ["writing", [call("completed"), text("then")]],
  ] as const)("is %s", (status, blocks) => expect(statusOf(views(...blocks))).toBe(status));
});

test("a run does not wait for an approval whose time has passed", () => {
  expect(statusOf(views(call("blocked")), () => true)).toBe("thinking");
});

test("the round is told with the most rounds where they are known, and not where there is but one", () => {
  expect(stepOf({ step: null, blocks: [] })).toBe("");
  expect(stepOf({ step: null, blocks: views(call("running", 3)) })).toBe("Round 3");
  expect(stepOf({ step: { step: 2, maxSteps: 20 }, blocks: views(call("running", 3)) })).toBe("Round 3 of 20");
  expect(stepOf({ step: { step: 1, maxSteps: 1 }, blocks: views(call("running")) })).toBe("");
});

test("the newest switch of models is told", () => {
  const notice = (code: string, message: string): Block => ({ type: "notice", code, message });
  expect(fallbackOf(views(notice("resumed", "Here again.")))).toBeNull();
  expect(fallbackOf(views(notice("model_switched", "No. Asking b instead."), text("so"), notice("model_switched", "No. Asking c instead.")))).toBe("The first model couldn’t answer. c took over.");
});

test("what is not counted yet is the text after the last round", () => {
  expect(uncountedText(views(text("one"), call("completed"), text("two"), text("three")))).toBe("twothree");
  expect(uncountedText(views(text("one"), call("running")))).toBe("");
});

test("the budget that is nearest to its end counts", () => {
  expect(budgetShareOf({ tokens: 10, usd: 1 }, { usd: "", tokens: "" })).toBeNull();
  expect(budgetShareOf({ tokens: 10, usd: 1 }, { usd: "4", tokens: "20" })).toBe(0.5);
  expect(budgetShareOf({ tokens: 90, usd: 0 }, { usd: "1", tokens: "30" })).toBe(1);
});

test("times are rounded to what matters", () => {
  expect([0.2, 12, 89, 300].map(duration)).toEqual(["1\u00a0s", "12\u00a0s", "89\u00a0s", "5\u00a0min"]);
});
