// The status of a run in words, for the control bar.

import type { Block, Finish } from "@khala/client";
import type { BlockView, MessageView } from "../state/page-model.ts";
import { m } from "../i18n/messages.ts";
import { noticeLabel } from "./notice-labels.ts";

type Status = "thinking" | "writing" | "running tools" | "waiting for approval";

/** The labels of the statuses. */
export const STATUS_LABELS: Readonly<Record<Status, string>> = {
  thinking: m.status_thinking(),
  writing: m.status_writing(),
  "running tools": m.status_running_tools(),
  "waiting for approval": m.waiting_for_approval_inline(),
};

type Reasons = Partial<Record<Finish["reason"], string>>;

/** Reasons for a run to end early. */
export const STOPPED: Reasons = {
  length: m.reached_the_length_limit(),
  max_steps: m.reached_the_round_limit(),
  no_progress: m.stopped_no_progress(),
  budget: m.reached_the_budget_limit(),
};

/** The current activity of a run. A call that waits for approval counts only if nothing else is active, and it is not overdue. */
export function statusOf(blocks: readonly BlockView[], isOverdue: (block: Block) => boolean = () => false): Status {
  const states = new Set(blocks.flatMap(({ block }) => (block.type === "tool" && !(block.state === "blocked" && isOverdue(block)) ? [block.state] : [])));
  if (states.has("running") || states.has("queued")) return "running tools";
  if (states.has("blocked")) return "waiting for approval";
  return blocks.at(-1)?.block.type === "text" ? "writing" : "thinking";
}

/** "Round 3 of 20", or "Round 3" if the maximum is unknown; empty before the first step, and if there can be only one. */
export function stepOf(answer: Pick<MessageView, "step" | "blocks">): string {
  const { step: stepPart } = answer;
  const step = stepNumber(answer);
  if (step === 0 || stepPart?.maxSteps === 1) return "";
  return stepPart ? m.round_of_max({ round: step, max: stepPart.maxSteps }) : m.round_number({ round: step });
}

/** The number of the newest step, from 1; 0 before the first one. */
export function stepNumber({ step, blocks }: Pick<MessageView, "step" | "blocks">): number {
  return blocks.reduce((most, { block }) => Math.max(most, block.type === "tool" ? (block.step ?? 0) : 0), step?.step ?? 0);
}

/** The newest notice about a switch to another model, or null. */
export function fallbackOf(blocks: readonly BlockView[]): string | null {
  const notice = blocks.findLast(({ block }) => block.type === "notice" && block.code === "model_switched")?.block;
  return notice?.type === "notice" ? noticeLabel(notice) : null;
}

/** The text after the last step, which the run's usage does not include yet. */
export function uncountedText(blocks: readonly BlockView[]): string {
  const last = blocks.findLastIndex(({ block }) => block.type === "tool");
  return blocks.slice(last + 1).map(({ block }: { block: Block }) => (block.type === "text" ? block.text : "")).join("");
}

/** The share of the budget that is used, from 0 to 1, of the budget that is closest to its limit; null without a budget. */
export function budgetShareOf(used: { tokens: number; usd: number }, budget: { usd: string; tokens: string }): number | null {
  const shares = [used.usd / Number(budget.usd || NaN), used.tokens / Number(budget.tokens || NaN)].filter((share) => Number.isFinite(share));
  return shares.length > 0 ? Math.min(1, Math.max(...shares)) : null;
}

/** "12 s", "3 min" */
export function duration(seconds: number): string {
  return seconds < 90 ? m.seconds({ count: Math.max(1, Math.round(seconds)) }) : m.minutes({ count: Math.round(seconds / 60) });
}
