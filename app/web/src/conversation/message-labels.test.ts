import { describe, expect, it } from "vitest";

import type { Block } from "@khala/client";
import type { BlockView } from "../state/page-model.ts";
import { deliveryLabel, endingLabel, groupBlocks, peopleFrom, progressLabel, storedReasonOf, typingLabel, usageLabel } from "./message-labels.ts";

function views(...blocks: Block[]): BlockView[] {
  return blocks.map((block, at) => ({ key: String(at), block }));
}

const tool = (step: number, state: "running" | "blocked" = "running"): Block => ({ type: "tool", toolCallId: `${step}`, tool: "grep", state, step });
const text: Block = { type: "text", text: "x" };

describe("words about messages", () => {
  it("say how an answer ended only where that has to be said", () => {
    const usage = { inputTokens: 1, outputTokens: 2 };
    expect(endingLabel("done", { reason: "stop", usage })).toBeNull();
    expect(endingLabel("done", { reason: "max_steps", usage })).toBe("Reached the limit of rounds");
    expect(endingLabel("failed", { reason: "error", usage })).toBe("Failed");
    expect(endingLabel("interrupted", null)).toBe("Interrupted. Reconnecting…");
  });

  it("tell what an answer took", () => {
    const finish = { reason: "stop" as const, usage: { inputTokens: 1057, outputTokens: 200 }, costUsd: "0.00042", model: "demo", totalMs: 2100 };
    expect(usageLabel(finish)).toBe("demo · 1,057 tokens in, 200 out · $0.00042 · 2.1\u00a0s");
  });

  it("tell how far a run is", () => {
    const round = { step: 3, maxSteps: 20, usage: { inputTokens: 1200, outputTokens: 4 }, costUsd: "0.01" };
    expect(progressLabel({ step: round, blocks: views(tool(3)) })).toBe("Round 3 of 20 · 1,204\u00a0tokens · $0.01 so far");
    expect(progressLabel({ step: round, blocks: views(tool(2), tool(3, "blocked")) })).toBe("Round 3 of 20 · waiting for approval · 1,204\u00a0tokens · $0.01 so far");
    expect(progressLabel({ step: { step: 1, maxSteps: 1 }, blocks: views(tool(1, "blocked")) })).toBe("Waiting for approval");
    expect(progressLabel({ step: { step: 1, maxSteps: 1 }, blocks: views(tool(1, "blocked")) }, () => true)).toBe("");
    expect(progressLabel({ step: null, blocks: views(tool(2)) })).toBe("Round 2");
    expect(progressLabel({ step: null, blocks: views(text) })).toBe("");
  });

  it("tell how a question on its way stands", () => {
    expect(deliveryLabel("sending", null)).toBe("Sending…");
    expect(deliveryLabel("sending", null, 2)).toBe("Retrying…");
    expect(deliveryLabel("queued", null)).toBe("Will be sent when you’re back online");
    expect(deliveryLabel("failed", { reason: "Too many requests." })).toBe("Not sent. Too many requests.");
    expect(deliveryLabel("sent", null)).toBeNull();
  });

  it("take tool calls that follow each other together, and know their step if it is the same", () => {
    const shown = groupBlocks(views(text, tool(1), tool(1), tool(2), text, tool(2), tool(2), text, tool(3), tool(4), tool(3)));
    expect(shown.map((part) => ("tools" in part ? [part.tools.length, part.step] : part.view.block.type))).toEqual(["text", [3, 0], "text", [2, 2], "text", [3, 0]]);
  });

  it("know what the server has written about an early end, which the page says in its own words", () => {
    const usage = { inputTokens: 1, outputTokens: 2 };
    const notices: Block[] = [{ type: "notice", code: "resumed", message: "It goes on." }, { type: "notice", code: "max_steps", message: "Stopped after 3 steps." }];
    expect(storedReasonOf({ error: { reason: "Lost." }, finish: { reason: "error", usage }, blocks: views(...notices) })).toBe("Lost.");
    expect(storedReasonOf({ error: null, finish: { reason: "max_steps", usage }, blocks: views(...notices) })).toBe("Stopped after 3 steps.");
    expect(storedReasonOf({ error: null, finish: { reason: "stop", usage }, blocks: views(...notices) })).toBeNull();
    expect(storedReasonOf({ error: null, finish: null, blocks: views(...notices) })).toBeNull();
  });
});

describe("words about people", () => {
  const participant = (name: string | undefined, typing: boolean) => ({ id: name ?? "?", ...(name && { name }), anonymous: !name, state: { typing } });

  it("say who is typing", () => {
    const words = (...names: (string | undefined)[]): string => typingLabel(peopleFrom(names.map((name) => participant(name, true))));
    expect(words()).toBe("");
    expect(words("Ada")).toBe("Ada is typing…");
    expect(words("Ada", undefined)).toBe("Ada and Guest are typing…");
    expect(words("Ada", "Bob", "Cyd")).toBe("3 people are typing…");
    expect(typingLabel(peopleFrom([participant("Ada", false)]))).toBe("");
  });
});
