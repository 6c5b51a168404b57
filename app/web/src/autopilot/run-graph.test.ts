import { describe, expect, test } from "vitest";

import type { Block, ToolBlock } from "@khala/client";
import { graphLegend, graphSteps, indexAfterKey, MAX_SHOWN_CALLS } from "./run-graph.ts";

type State = ToolBlock["state"];

const call = (toolCallId: string, step: number, changes: Partial<ToolBlock> = {}) => ({ block: { type: "tool", toolCallId, step, tool: "glob", state: "completed", ...changes } satisfies Block });
const text = { block: { type: "text", text: "so" } satisfies Block };
const clock = { now: 10_000, startedAt: () => 3_000 };
const many = (count: number) => Array.from({ length: count }, (_, index) => call(`${index}`, 1));

describe("the graph of a run", () => {
  test("has its steps in order, each with its calls", () => {
    const steps = graphSteps([text, call("a", 1), call("b", 1, { tool: "grep" }), text, call("c", 2)], clock);
    expect(steps.map(({ step, status, calls }) => [step, status, ...calls.map(({ tool }) => tool)])).toEqual([[1, "2 of 2 done", "glob", "grep"], [2, "done", "glob"]]);
    expect(graphSteps([text], clock)).toEqual([]);
  });

  test("says of each call its state in words, and how long it took or has been running", () => {
    const [step] = graphSteps([call("a", 1, { durationMs: 12_400 }), call("b", 1, { state: "running" }), call("c", 1, { state: "failed", durationMs: 840 }), call("d", 1, { state: "failed", summary: "Denied by Ada: no." }), call("e", 1, { state: "blocked" })], clock);
    expect(step?.calls.map(({ state, status }) => [state, status])).toEqual([["completed", "done · 12.4\u00a0s"], ["running", "7\u00a0s"], ["failed", "failed"], ["denied", "denied"], ["blocked", "needs approval"]]);
  });

  test("says that a step waits only when nothing else of it runs", () => {
    const stateOf = (...states: State[]) => graphSteps(states.map((state, index) => call(`${index}`, 1, { state })), clock)[0]?.state;
    expect(stateOf("blocked", "running")).toBe("running");
    expect(stateOf("blocked", "completed")).toBe("blocked");
    expect(stateOf("failed", "completed")).toBe("completed");
    expect(stateOf("failed", "failed")).toBe("failed");
  });

  test("is bounded", () => {
    expect(graphSteps(many(MAX_SHOWN_CALLS + 5), clock)[0]?.calls).toHaveLength(MAX_SHOWN_CALLS);
  });

  test("has a legend of the states that its calls have, with their numbers", () => {
    const steps = graphSteps([call("a", 1), call("b", 1, { state: "failed" }), call("c", 2)], clock);
    expect(graphLegend(steps).map(({ label, count }) => [label, count])).toEqual([["done", 2], ["failed", 1]]);
  });

  test("moves by arrow keys from call to call, in the direction of the text, and not beyond its ends", () => {
    expect([indexAfterKey("ArrowRight", 0, 3, false), indexAfterKey("ArrowRight", 2, 3, false), indexAfterKey("ArrowLeft", 0, 3, true), indexAfterKey("ArrowUp", 0, 3, false)]).toEqual([1, 2, 1, 0]);
    expect([indexAfterKey("Home", 2, 3, false), indexAfterKey("End", 0, 3, false), indexAfterKey("a", 0, 3, false)]).toEqual([0, 2, null]);
  });
});
