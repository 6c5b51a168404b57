import { expect, test } from "vitest";
import type { FinishReason } from "@khala/client";
import type { MessageDisplayStatus, MessageError } from "../state/page-model.ts";
import { nextStepOf } from "./answer-endings.ts";

const usage = { inputTokens: 1, outputTokens: 1 };

test.each<[MessageDisplayStatus, FinishReason, MessageError | null, ReturnType<typeof nextStepOf>]>([
  ["stopped", "canceled", null, "retry"],
  ["failed", "error", { reason: "The connection was lost." }, "retry"],
  ["done", "length", null, "continue"],
  ["done", "max_steps", null, "continue"],
  ["done", "no_progress", null, "retry"],
  ["done", "budget", { reason: "This answer has reached its budget." }, "raise"],
  ["done", "budget", { reason: "The budget of this account is used up for now.", retryAt: 1000 }, "retry"],
  ["done", "tool_calls", null, null],
  ["done", "stop", null, null],
])("after an answer that is %s by %s the next step is offered", (displayStatus, reason, error, step) => {
  expect(nextStepOf({ displayStatus, finish: { reason, usage }, error })).toBe(step);
});
