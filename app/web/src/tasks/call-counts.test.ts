import { expect, test } from "vitest";
import type { ToolState } from "@khala/client";
import { random } from "@khala/client/testing/random.ts";
import { CallCounts } from "./call-counts.ts";
import { hasEnded } from "./call-labels.ts";

const STATES: readonly ToolState[] = ["queued", "running", "completed", "failed", "blocked", "cancelled"];
const call = (toolCallId: string, state: ToolState, tool = "grep", durationMs?: number) => ({ type: "tool" as const, toolCallId, tool, state, ...(durationMs !== undefined && { durationMs }) });

test("however calls change, the numbers are those that counting all of them would give", () => {
  for (let seed = 1; seed <= 100; seed++) {
    const [next, tally, calls] = [random(seed).below, new CallCounts(), new Map<string, { state: ToolState; tool: string }>()];
    for (let turn = 0; turn < 80; turn++) {
      const [id, state, tool] = [`call ${next(12)}`, STATES[next(6)] ?? "queued", next(4) ? "grep" : "glob"];
      tally.put(call(id, state, tool));
      calls.set(id, { state, tool });
    }
    const all = [...calls.values()];
    for (const state of STATES) expect(tally.counts[state]).toBe(all.filter((one) => one.state === state).length);
    expect(tally.all).toBe(all.length);
    expect(tally.ended).toBe(all.filter((one) => hasEnded(one.state)).length);
    expect(Object.fromEntries(tally.tools)).toEqual(Object.fromEntries(["grep", "glob"].map((tool) => [tool, all.filter((one) => one.tool === tool).length]).filter(([, count]) => count)));
  }
});

test("tools keep the order of their first calls, whatever state the calls are in", () => {
  const tally = new CallCounts();
  for (const tool of ["grep", "glob"]) tally.put(call(tool, "queued", tool));
  tally.put(call("grep", "running", "grep"));
  expect([...tally.tools.keys()]).toEqual(["grep", "glob"]);
});

test("denied calls are counted among the failed ones", () => {
  const tally = new CallCounts();
  tally.put({ ...call("a", "failed"), summary: "Denied by Ada." });
  tally.put(call("b", "failed"));
  expect([tally.counts.failed, tally.denied]).toEqual([2, 1]);
  tally.put(call("a", "completed"));
  expect([tally.counts.failed, tally.denied]).toEqual([1, 0]);
});

test("expired calls are counted among the failed ones", () => {
  const tally = new CallCounts();
  tally.put(call("a", "blocked"));
  tally.put({ ...call("a", "failed"), summary: "Nobody approved this in time." });
  expect([tally.counts.failed, tally.expired, tally.denied]).toEqual([1, 1, 0]);
});

test("a call that is the same changes nothing", () => {
  const tally = new CallCounts();
  expect(tally.put(call("a", "running"))).toBe(true);
  expect(tally.put(call("a", "running"))).toBe(false);
  expect(tally.put(call("a", "completed", "grep", 5))).toBe(true);
});

test("parallel calls took as long as the longest of them, and steps one after the other, which nobody knows of what was cancelled", () => {
  const tally = new CallCounts();
  tally.put(call("a", "completed", "grep", 1200));
  tally.put(call("b", "failed", "grep", 300));
  expect(tally.took).toBe(1200);
  tally.put({ ...call("c", "completed", "grep", 500), step: 2 });
  tally.put({ ...call("d", "completed", "grep", 800), step: 2 });
  expect(tally.took).toBe(2000);
  tally.put(call("e", "cancelled"));
  expect(tally.took).toBe(0);
});

test("completed calls are counted by tool and name, whatever they were before", () => {
  const tally = new CallCounts();
  const read = (toolCallId: string, state: ToolState, path: string) => ({ ...call(toolCallId, state, "read_file"), args: { path } });
  for (const [id, path] of [["a", "notes/a.md"], ["b", "b.md"], ["c", "notes/a.md"]] as const) for (const state of ["running", "completed"] as const) tally.put(read(id, state, path));
  tally.put(read("d", "failed", "d.md"));
  expect([...(tally.done.get("read_file")?.names ?? [])]).toEqual([["a.md", 2], ["b.md", 1]]);
  tally.put(read("b", "running", "b.md"));
  expect([tally.done.get("read_file")?.count, tally.done.get("read_file")?.names.has("b.md")]).toEqual([2, false]);
});

test("the current call is the one that has run for the longest time, or the first that is queued", () => {
  const tally = new CallCounts();
  for (const [id, state] of [["a", "queued"], ["b", "queued"], ["b", "running"], ["a", "running"]] as const) tally.put(call(id, state));
  expect(tally.current?.toolCallId).toBe("b");
  tally.put(call("b", "completed"));
  tally.put(call("c", "queued"));
  expect(tally.current?.toolCallId).toBe("a");
  tally.put(call("a", "failed"));
  expect(tally.current?.toolCallId).toBe("c");
  tally.put(call("c", "blocked"));
  expect(tally.current).toBeUndefined();
});
