import { describe, expect, it } from "vitest";

import type { Block } from "../khala/frames.ts";
import type { BlockView } from "../state/shape.ts";
import { badge, facts, grouped, people, progress, typingWords, underway } from "./words.ts";

function views(...blocks: Block[]): BlockView[] {
  return blocks.map((block, at) => ({ key: String(at), block }));
}

const tool = (step: number, state: "running" | "blocked" = "running"): Block => ({ type: "tool", toolCallId: `${step}`, tool: "grep", state, step });
const text: Block = { type: "text", text: "x" };

describe("words about messages", () => {
  it("say how an answer ended only where that has to be said", () => {
    const usage = { inputTokens: 1, outputTokens: 2 };
    expect(badge("done", { reason: "stop", usage })).toBeNull();
    expect(badge("done", { reason: "max_steps", usage })).toBe("Stopped at the step limit");
    expect(badge("failed", { reason: "error", usage })).toBe("Failed");
    expect(badge("interrupted", null)).toBe("Interrupted – waiting for the connection");
  });

  it("tell what an answer took", () => {
    const finish = { reason: "stop" as const, usage: { inputTokens: 1057, outputTokens: 200 }, costUsd: "0.00042", model: "demo", totalMs: 2100 };
    expect(facts(finish)).toBe("demo · 1,057 in, 200 out tokens · $0.00042 · 2.1 s");
  });

  it("tell how far a run is", () => {
    const round = { step: 3, maxSteps: 20, usage: { inputTokens: 1200, outputTokens: 4 }, costUsd: "0.01" };
    expect(progress({ round, blocks: views(tool(3)) })).toBe("Step 3/20 · 1,204 tokens · $0.01 so far");
    expect(progress({ round, blocks: views(tool(2), tool(3, "blocked")) })).toBe("Step 3/20 · waits for approval · 1,204 tokens · $0.01 so far");
    expect(progress({ round: { step: 1, maxSteps: 1 }, blocks: views(tool(1, "blocked")) })).toBe("Waits for approval");
    expect(progress({ round: null, blocks: views(tool(2)) })).toBe("Step 2");
    expect(progress({ round: null, blocks: views(text) })).toBe("");
  });

  it("tell how a question on its way stands", () => {
    expect(underway("sending", null)).toBe("Sending …");
    expect(underway("sending", { reason: "x" })).toBe("Sending, trying again …");
    expect(underway("queued", null)).toBe("Queued: will be sent when you are back online");
    expect(underway("failed", { reason: "That was too much at once." })).toBe("Not sent. That was too much at once.");
    expect(underway("sent", null)).toBeNull();
  });

  it("take tool calls of a step that follow each other together", () => {
    const shown = grouped(views(text, tool(1), tool(1), tool(2), text, tool(2)));
    expect(shown.map((part) => ("tools" in part ? part.tools.length : part.view.block.type))).toEqual(["text", 2, 1, "text", 1]);
  });

});

describe("words about people", () => {
  const participant = (name: string | undefined, typing: boolean) => ({ id: name ?? "?", ...(name && { name }), anonymous: !name, state: { typing } });

  it("say who is typing", () => {
    const words = (...names: (string | undefined)[]): string => typingWords(people(names.map((name) => participant(name, true))));
    expect(words()).toBe("");
    expect(words("Ada")).toBe("Ada is typing …");
    expect(words("Ada", undefined)).toBe("Ada and Guest are typing …");
    expect(words("Ada", "Bob", "Cyd")).toBe("3 people are typing …");
    expect(typingWords(people([participant("Ada", false)]))).toBe("");
  });
});
