import { expect, test } from "vitest";
import type { ToolBlock } from "@khala/client";
import { random } from "@khala/client/testing/random.ts";
import { argumentsLine, callArgumentsLine, isExpired, outcomeLabel, STATE_ICONS, STATE_LABELS, stateOf, stepStatus, timeLabel, toolNames } from "./call-labels.ts";

const graphemes = (text: string) => [...new Intl.Segmenter("en", { granularity: "grapheme" }).segment(text)].length;
const none = { queued: 0, running: 0, completed: 0, failed: 0, blocked: 0, cancelled: 0 };
const block = (more: Partial<ToolBlock>): ToolBlock => ({ type: "tool", toolCallId: "a", tool: "grep", state: "running", ...more });

test("arguments are named, unless there is only one", () => {
  expect(argumentsLine({ path: "a.txt", content: "hi" })).toBe("path: a.txt, content: hi");
  expect(argumentsLine({ text: "n 1" })).toBe("n 1");
  expect([argumentsLine({}), argumentsLine(undefined)]).toEqual(["", ""]);
});

test("whatever the arguments are, they are one line of at most 60 characters as people count them", () => {
  const pieces = ["a", "\n", "\t", "👩‍👩‍👧‍👦", "é", "e\u0301", "\u202e", "\u0000", "漢", "🇩🇪", " ", "\ud800", '"'];
  for (let seed = 1; seed <= 300; seed++) {
    const { below: next } = random(seed);
    const text = () => Array.from({ length: next(90) }, () => pieces[next(pieces.length)]).join("");
    const line = argumentsLine({ [text()]: text(), b: { c: [text()] } });
    expect(graphemes(line)).toBeLessThanOrEqual(60);
    expect(line).not.toMatch(/[\p{Cc}\u2028\u202e]/u);
  }
});

test("a line that is cut ends with an ellipsis, and no letter is cut in two", () => {
  expect(argumentsLine({ a: "👩‍👩‍👧‍👦".repeat(61) })).toBe(`${"👩‍👩‍👧‍👦".repeat(59)}…`);
  expect(argumentsLine({ a: "x".repeat(60) })).toBe("x".repeat(60));
});

test("arguments in a blob are told by their beginning", () => {
  const blob = { blobId: "x", size: 9_000, sha256: "ab", mediaType: "application/json", preview: '{\n  "path": "a"' };
  expect(callArgumentsLine(block({ argsBlob: blob }))).toBe('{ "path": "a"');
});

test("a step is told by how its calls stand and which they are", () => {
  expect(stepStatus({ ...none, completed: 3, failed: 1 }, 4)).toBe("3 of 4 done, 1 failed");
  expect(stepStatus({ ...none, running: 1, blocked: 2 }, 3)).toBe("0 of 3 done, 2 waiting for approval");
  expect(stepStatus({ ...none, completed: 1, blocked: 1 }, 2)).toBe("waiting for approval");
  expect([stepStatus({ ...none, completed: 1 }, 1), stepStatus({ ...none, failed: 1 }, 1), stepStatus({ ...none, running: 1 }, 1)]).toEqual(["done", "failed", "running"]);
  expect(toolNames(new Map([["todo_add", 30], ["glob", 1]]))).toBe("Add to-do ×30, Find files");
  expect(toolNames(new Map(["a", "b", "c", "d", "e"].map((name) => [name, 1])))).toBe("A, B, C, D…");
  expect(toolNames(new Map([["delete_file", 1], ["evil__delete_file", 1]]))).toBe("Delete file, Delete file (evil)");
});

test("denied calls count by themselves and have a label and an icon of their own", () => {
  expect(stepStatus({ ...none, completed: 1, failed: 3, denied: 2 }, 4)).toBe("1 of 4 done, 1 failed, 2 denied");
  expect(stepStatus({ ...none, failed: 1, denied: 1 }, 1)).toBe("denied");
  const [denied, failed] = [stateOf(block({ state: "failed", summary: "Denied by Ada." })), stateOf(block({ state: "failed", summary: "No such file." }))];
  expect([denied.label, failed.label]).toEqual(["denied", "failed"]);
  expect(Object.values(STATE_ICONS)).not.toContain(denied.icon);
});

test("a call that asks the person something does not look like one that runs", () => {
  const [asks, runs] = [stateOf(block({ digest: "d" })), stateOf(block({}))];
  expect([asks.label, asks.icon === runs.icon, stateOf(block({ digest: "d" }), true).label]).toEqual(["needs an answer", false, "running"]);
});

test("a call that nobody approved in time has expired, also before the server says so", () => {
  const [waits, ended] = [block({ state: "blocked" }), block({ state: "failed", summary: "Nobody approved this in time." })];
  for (const label of [stateOf(waits, true).label, stateOf(ended).label, timeLabel(waits, 0, 0, true), timeLabel(ended, 0, 0)]) expect(label).toBe("expired");
  expect([isExpired(waits), isExpired(block({ state: "failed", summary: "No such file." }), true), outcomeLabel(ended)]).toEqual([false, false, "Expired without an answer."]);
  expect([stepStatus({ ...none, failed: 1, expired: 1 }, 1), stepStatus({ ...none, completed: 1, failed: 2, expired: 1 }, 3)]).toEqual(["expired", "1 of 3 done, 1 failed, 1 expired"]);
});

test("what runs counts, what has ended says how long it took", () => {
  expect(timeLabel(block({}), 1_000, 8_500)).toBe("7\u00a0s");
  expect(timeLabel(block({}), 1_000, 1_900)).toBe("running");
  expect(timeLabel(block({ state: "completed", durationMs: 1234 }), 0, 0)).toBe("1.2\u00a0s");
  expect(timeLabel(block({ state: "completed" }), 0, 0)).toBe("");
  expect(timeLabel(block({ state: "failed", durationMs: 2100 }), 0, 0)).toBe("failed · 2.1\u00a0s");
  expect([timeLabel(block({ state: "completed", durationMs: 999 }), 0, 0), timeLabel(block({ state: "failed", durationMs: 12 }), 0, 0)]).toEqual(["", "failed"]);
  expect(timeLabel(block({ state: "blocked" }), 0, 0)).toBe("needs approval");
});

test("a denied call says so once, and who denied it and why where that is known", () => {
  const denied = (summary: string) => block({ state: "failed", summary });
  expect(timeLabel(denied("Denied by a user."), 0, 0)).toBe("denied");
  expect([outcomeLabel(denied("Denied by a user.")), outcomeLabel(denied("Denied."))]).toEqual(["", ""]);
  expect(outcomeLabel(denied("Denied by Ada: it is mine"))).toBe("Denied by Ada: it is mine");
  expect([outcomeLabel(block({ reason: "Half way" })), outcomeLabel(block({ state: "blocked", reason: "x" }))]).toEqual(["Half way", ""]);
});

test("the six states differ in shape and in words", () => {
  expect([new Set(Object.values(STATE_ICONS)).size, new Set(Object.values(STATE_LABELS)).size]).toEqual([6, 6]);
});

test("the line of a call names what nobody would see", () => {
  expect(argumentsLine({ path: "a\u202ecod.exe\u{e0041}" })).toBe("a⟨U+202E⟩cod.exe⟨U+E0041⟩");
  expect(argumentsLine({ text: "❤️\u00a0\ufeffx" })).toBe("❤️ ⟨U+FEFF⟩x");
});
