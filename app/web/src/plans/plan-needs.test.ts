import { describe, expect, it, vi } from "vitest";

import type { MessageView } from "../state/page-model.ts";
import { isPlanActive, planNeeds, stepApprovals, tabTitle, waitingCalls } from "./plan-needs.ts";
import type { StepApproval } from "./plan-needs.ts";
import { PlanNotifier } from "./plan-notifier.ts";
import { planEntry, planState } from "./testing.ts";

const APPROVAL: StepApproval = { planId: "p", stepId: "a", messageId: "m", toolCallId: "c", tool: "delete_file" };

function answer(displayStatus: MessageView["displayStatus"], hasStep = true): MessageView {
  const step = hasStep ? { step: { planId: "p", stepId: "a", attempt: 1 } } : {};
  const block = (state: "blocked" | "completed", toolCallId: string) => ({ key: toolCallId, block: { type: "tool", toolCallId, tool: "delete_file", state } });
  return { id: "m", head: step, displayStatus, blocks: [block("completed", "b"), block("blocked", "c")] } as unknown as MessageView;
}

describe("what plans need", () => {
  it("is a decision about each call that waits in a running step", () => {
    expect(stepApprovals([answer("writing"), answer("stopped"), answer("writing", false)])).toEqual([APPROVAL]);
  });

  it.each([
    ["running", undefined, 0, []],
    ["running", undefined, 1, ["failed"]],
    ["paused", "requested", 0, []],
    ["paused", "review", 0, ["review"]],
    ["paused", "step_failed", 1, ["paused"]],
    ["paused", "all_limited", 0, ["paused"]],
    ["stopped", "error", 1, []],
    ["stopped", "completed", 0, []],
  ] as const)("of a plan that is %s (%s) with %i failed steps: %j", (status, reason, failed, kinds) => {
    const plan = planState(planEntry({ status, ...(reason && { reason }), counts: { failed } }));
    expect(planNeeds([plan], []).map(({ kind }) => kind)).toEqual(kinds);
  });

  it.each([["idle", false], ["running", true], ["paused", true], ["stopped", false]] as const)("takes the place of a run's bar if a plan is %s: %j", (status, isActive) => {
    expect(isPlanActive([planState(planEntry({ status }))])).toBe(isActive);
  });

  it("is nothing once the time for a decision has passed", () => {
    const isOverdue = (): boolean => true;
    expect([stepApprovals([answer("writing")], isOverdue), waitingCalls(answer("writing"), isOverdue)]).toEqual([[], 0]);
  });

  it("is also counted in calls of the open answer, and in other chats", () => {
    expect([waitingCalls(answer("writing")), waitingCalls(null)]).toEqual([1, 0]);
    expect(tabTitle("My chat", [], 2)).toBe("(2) My chat · Khala");
  });

  it("is counted in the title of the tab by plans", () => {
    const plans = [planState(planEntry({ counts: { failed: 1 } })), planState(planEntry({ id: "q", status: "paused", reason: "review" }))];
    expect(tabTitle("My chat", planNeeds(plans, [APPROVAL]))).toBe("(2) My chat · Khala");
    expect(tabTitle("", [])).toBe("Khala");
  });
});

describe("notifications", () => {
  const needs = (...keys: string[]) => keys.map((key) => ({ key, planId: "p", kind: "review" as const }));

  it("are shown once for each need that is new, and not for those of a chat that was just opened", () => {
    const show = vi.fn();
    const notifier = new PlanNotifier(show);
    notifier.update("t", needs("a"), true);
    notifier.update("t", needs("a", "b"), true);
    notifier.update("t", needs("b"), true);
    notifier.update("u", needs("c"), true);
    expect(show.mock.calls.map(([need]) => (need as { key: string }).key)).toEqual(["b"]);
  });

  it("are not shown later for what the person could see", () => {
    const show = vi.fn();
    const notifier = new PlanNotifier(show);
    notifier.update("t", [], true);
    notifier.update("t", needs("a"), false);
    notifier.update("t", needs("a"), true);
    expect(show).not.toHaveBeenCalled();
  });
});
