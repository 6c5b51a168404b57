// What plans need of people: a decision about a tool call, a review, or help after a failure.

import type { Block, PlanState } from "@khala/client";
import type { MessageView } from "../state/page-model.ts";
import { m } from "../i18n/messages.ts";

/** `key` stays the same as long as it is the same need. */
export type PlanNeed = { readonly key: string; readonly planId: string; readonly kind: "approval" | "review" | "paused" | "failed"; readonly stepId?: string };

/** A tool call in a step that waits for approval. */
export type StepApproval = { readonly planId: string; readonly stepId: string; readonly messageId: string; readonly toolCallId: string; readonly tool: string };

type IsOverdue = (block: Block) => boolean;
const never: IsOverdue = () => false;

/** The tool calls in running steps that wait for approval, without those that are overdue. */
export function stepApprovals(answers: readonly MessageView[], isOverdue = never): StepApproval[] {
  return answers.flatMap(({ id, head, blocks, displayStatus }) => {
    const { step } = head;
    if (!step || displayStatus !== "writing") return [];
    const blocked = blocks.flatMap(({ block }) => (block.type === "tool" && block.state === "blocked" && !isOverdue(block) ? [block] : []));
    return blocked.map(({ toolCallId, tool }) => ({ planId: step.planId, stepId: step.stepId, messageId: id, toolCallId, tool }));
  });
}

/** Whether a plan works, or has paused: its bar takes the place of that of a run. */
export function isPlanActive(plans: readonly PlanState[]): boolean {
  return plans.some(({ entry }) => entry.status !== "idle" && entry.status !== "stopped");
}

/** All that the plans need of somebody. A plan that somebody paused, or that has stopped, needs nothing. */
export function planNeeds(plans: readonly PlanState[], approvals: readonly StepApproval[]): PlanNeed[] {
  return plans.flatMap(({ id, entry }) => {
    if (entry.status === "stopped") return [];
    const waiting = approvals.filter(({ planId }) => planId === id);
    const needs: PlanNeed[] = waiting.map(({ stepId, toolCallId }) => ({ key: `${id} approval ${stepId} ${toolCallId}`, planId: id, kind: "approval", stepId }));
    const isPaused = entry.status === "paused" && entry.reason !== "requested";
    if (isPaused) needs.push({ key: `${id} paused ${entry.eventSeq}`, planId: id, kind: entry.reason === "review" ? "review" : "paused" });
    else if (entry.counts.failed > 0) needs.push({ key: `${id} failed ${entry.counts.failed}`, planId: id, kind: "failed" });
    return needs;
  });
}

/** The number of tool calls in the open answer that wait for the person: for approval, or for an answer to a tool's question. */
export function waitingCalls(answer: MessageView | null, isOverdue = never): number {
  return answer?.blocks.filter(({ block }) => block.type === "tool" && (block.state === "blocked" || (block.state === "running" && block.digest !== undefined)) && !isOverdue(block)).length ?? 0;
}

/** The title of the browser's tab: "(2) My chat · Khala" if two plans, or a plan and one of `others`, need somebody. */
export function tabTitle(title: string, needs: readonly PlanNeed[], others = 0): string {
  const count = new Set(needs.map(({ planId }) => planId)).size + others;
  return `${count > 0 ? `(${count}) ` : ""}${title ? m.title_khala({ title }) : "Khala"}`;
}
