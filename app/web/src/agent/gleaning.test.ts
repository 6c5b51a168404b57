import { describe, expect, test } from "vitest";

import type { Finish, Message, Thread, ToolBlock } from "../khala/frames.ts";
import { indexable, runOf } from "./gleaning.ts";

const AT = "2026-01-02T03:04:05Z";
const THREAD: Thread = { id: "t", title: "Title", visibility: "private", revision: 7, createdAt: AT, updatedAt: AT };
const FINISH: Finish = { reason: "stop", usage: { inputTokens: 100, outputTokens: 20 }, totalMs: 1_500, provider: "openai", model: "gpt-5", costUsd: "0.01" };
const tool = (toolCallId: string, name: string, step: number): ToolBlock => ({ type: "tool", toolCallId, tool: name, state: "completed", step, summary: "done" });
const message = (changes: Partial<Message>): Message => ({ id: "m", threadId: "t", role: "assistant", status: "final", seq: 1, createdAt: AT, updatedAt: AT, ...changes });

describe("to be searched", () => {
  test("are questions and answers that have ended, by what was written in them", () => {
    const [thread, messages] = indexable(THREAD, [
      message({ id: "q", role: "user", content: [{ type: "text", text: "What is it?" }] }),
      message({ id: "a", finish: FINISH, content: [{ type: "text", text: "First" }, tool("1", "grep", 0), { type: "text", text: "then" }] }),
      message({ id: "writing", content: [{ type: "text", text: "Half a" }] }),
    ]);
    expect(thread).toEqual({ id: "t", title: "Title", revision: 7 });
    expect(messages).toEqual([
      { id: "q", text: "What is it?", at: Date.parse(AT) },
      { id: "a", text: "First\nthen", at: Date.parse(AT) },
    ]);
  });

  test("is a thread without a title, too", () => {
    const untitled = structuredClone(THREAD);
    delete untitled.title;
    expect(indexable(untitled, [])).toEqual([{ id: "t", title: "", revision: 7 }, []]);
  });
});

describe("to be remembered", () => {
  test("is what an answer that the model finished took", () => {
    const content = [tool("1", "grep", 0), tool("2", "grep", 0), tool("3", "read_file", 1)];
    expect(runOf(message({ runId: "r", finish: FINISH, content }), "tester")).toEqual({
      id: "r", agent: "tester", model: "openai:gpt-5", tools: ["grep", "read_file"], steps: 3, ms: 1_500, inputTokens: 100, outputTokens: 20, costUsd: "0.01", at: Date.parse(AT),
    });
  });

  test("is nothing of one that was stopped, or doesn't say how long it took", () => {
    const untimed = structuredClone(FINISH);
    delete untimed.totalMs;
    expect(runOf(message({ finish: { ...FINISH, reason: "canceled" } }), null)).toBeNull();
    expect(runOf(message({ finish: untimed }), null)).toBeNull();
    expect(runOf(message({}), null)).toBeNull();
  });
});
