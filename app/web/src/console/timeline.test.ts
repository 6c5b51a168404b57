import { expect, test } from "vitest";

import { timelineOf } from "./timeline.ts";
import type { RunEvent, RunItem } from "./types.ts";

const START = Date.parse("2026-01-01T00:00:00Z");
const at = (ms: number) => new Date(START + ms).toISOString();

function event(kind: RunEvent["kind"], ms: number, more: Partial<RunEvent> = {}): RunEvent {
  const none = { startedAt: null, durationMs: null, seq: null, step: null, attempt: null, provider: null, model: null, tool: null, toolCallId: null, source: null, outcome: null, code: null };
  return { kind, at: at(ms), ...none, usd: null, inputTokens: null, outputTokens: null, firstTokenMs: null, estimated: null, bytes: null, decidedBy: null, decidedAt: null, expiresAt: null, ...more };
}

function run(more: Partial<RunItem> = {}): RunItem {
  const ids = { id: "r", threadId: "t", messageId: "m", account: null, planId: null, agent: null, model: null, provider: null, executor: null };
  const times = { leaseExpiresAt: null, cancelRequestedAt: null, startedAt: null, finishedAt: null, createdAt: at(0), totalMs: null };
  return { ...ids, ...times, state: "running", remote: false, attempt: 1, lost: 0, steps: 0, reason: null, usd: null, inputTokens: null, outputTokens: null, ...more };
}

function timeline(events: readonly RunEvent[], more: Partial<RunItem> = {}, now = 10_000) {
  return timelineOf({ run: run(more), timeline: events, truncated: false, packed: false }, START + now);
}

const call = (from: number, to: number, outcome = "tool_calls") => event("model", to, { startedAt: at(from), durationMs: to - from, model: "gpt-5", outcome });
const spans = (rows: readonly { title: string; bars: readonly { startMs: number; endMs: number }[] }[]) => rows.map(({ title, bars }) => [title, bars[0]?.startMs, bars[0]?.endMs]);

test("a run without an executor waits in the queue until now", () => {
  const { rows, spanMs, queuedMs } = timeline([event("queued", 0)], { state: "queued" }, 4000);
  expect(spans(rows)).toEqual([["In the queue", 0, 4000]]);
  expect(rows[0]?.bars[0]?.isOpen).toBe(true);
  expect([spanMs, queuedMs]).toEqual([4000, 4000]);
});

test("a run whose first call goes on has waited only until an executor claimed it", () => {
  const { rows, queuedMs } = timeline([event("queued", 0)], { startedAt: at(300) }, 4000);
  expect(spans(rows)).toEqual([["In the queue", 0, 300]]);
  expect(rows[0]?.bars[0]?.isOpen).toBe(false);
  expect(queuedMs).toBe(300);
});

test("a step lasts from its model call to the end of its tools, and what is inside is indented", () => {
  const events = [
    event("queued", 0),
    event("step", 500, { step: 1 }),
    call(100, 500),
    event("tool", 800, { startedAt: at(600), tool: "read_file", outcome: "ok" }),
    call(900, 1200, "stop"),
    event("finished", 1200, { outcome: "stop" }),
  ];
  const { rows, spanMs, queuedMs } = timeline(events, { state: "final", finishedAt: at(1200) });
  expect(spans(rows)).toEqual([
    ["In the queue", 0, 100],
    ["Step 1", 100, 800],
    ["gpt-5", 100, 500],
    ["read_file", 600, 800],
    ["gpt-5", 900, 1200],
    ["Ended", 1200, 1200],
  ]);
  expect(rows.map(({ level }) => level)).toEqual([0, 0, 1, 1, 0, 0]);
  expect([spanMs, queuedMs]).toEqual([1200, 100]);
});

test("an approval that waits lasts until now, and so does its step", () => {
  const events = [event("queued", 0), event("step", 50, { step: 1 }), call(10, 50), event("approval", 60, { tool: "delete_file", outcome: "pending" })];
  const { rows } = timeline(events, { state: "blocked" });
  expect(spans(rows).slice(1)).toEqual([
    ["Step 1", 10, 10_000],
    ["gpt-5", 10, 50],
    ["Approval of delete_file", 60, 10_000],
  ]);
});

test("an approval ends with its decision, or with the run", () => {
  const decided = event("approval", 60, { tool: "a", outcome: "approved", decidedAt: at(500) });
  const open = event("approval", 70, { tool: "b", outcome: "pending" });
  const { rows } = timeline([event("queued", 0), decided, open], { state: "canceled", finishedAt: at(900) });
  expect(rows.slice(1).map(({ bars }) => [bars[0]?.endMs, bars[0]?.isOpen])).toEqual([
    [500, false],
    [70, false],
  ]);
});

test("failures are marked, and ordinary ends are not", () => {
  const tool = (outcome: string) => event("tool", 30, { startedAt: at(20), tool: "t", outcome });
  const events = [event("queued", 0), call(1, 10, "provider_unavailable"), call(11, 19, "stop"), tool("ok"), tool("timeout"), event("finished", 40, { outcome: "error" })];
  expect(timeline(events, { state: "error", finishedAt: at(40) }).rows.map(({ kind }) => kind)).toEqual(["queue", "error", "model", "tool", "error", "error"]);
});

test("a take-over is named, and only known facts are listed", () => {
  const { rows } = timeline([event("queued", 0), event("notice", 30, { code: "resumed", seq: 4 })]);
  expect(rows[1]?.title).toBe("Taken over by another executor");
  expect(rows[1]?.facts.map(([name]) => name)).toEqual(["Recorded at", "Code", "Record"]);
});
