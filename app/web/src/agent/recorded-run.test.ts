import { describe, expect, test } from "vitest";

import type { Finish, Message, ToolBlock } from "@khala/client";
import { recordedRunOf } from "./recorded-run.ts";

const AT = "2026-01-02T03:04:05Z";
const FINISH: Finish = { reason: "stop", usage: { inputTokens: 100, outputTokens: 20 }, totalMs: 1_500, provider: "openai", model: "gpt-5", costUsd: "0.01" };
const tool = (toolCallId: string, name: string, step: number): ToolBlock => ({ type: "tool", toolCallId, tool: name, state: "completed", step, summary: "done" });
const message = (changes: Partial<Message>): Message => ({ id: "m", threadId: "t", role: "assistant", status: "final", seq: 1, createdAt: AT, updatedAt: AT, ...changes });

describe("to be remembered", () => {
  test("is what an answer that the model finished took", () => {
    const content = [tool("1", "grep", 0), tool("2", "grep", 0), tool("3", "read_file", 1)];
    expect(recordedRunOf(message({ runId: "r", finish: FINISH, content }), "tester")).toEqual({
      id: "r", agent: "tester", model: "openai:gpt-5", tools: ["grep", "read_file"], steps: 3, ms: 1_500, inputTokens: 100, outputTokens: 20, costUsd: "0.01", at: Date.parse(AT),
    });
  });

  test("is nothing of one that was stopped, or doesn't say how long it took", () => {
    const untimed = structuredClone(FINISH);
    delete untimed.totalMs;
    expect(recordedRunOf(message({ finish: { ...FINISH, reason: "canceled" } }), null)).toBeNull();
    expect(recordedRunOf(message({ finish: untimed }), null)).toBeNull();
    expect(recordedRunOf(message({}), null)).toBeNull();
  });
});
