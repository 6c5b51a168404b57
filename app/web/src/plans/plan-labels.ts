// The states of plans, their steps and their events in words.

import { formatDuration, formatUsd } from "../state/format.ts";
import type { PlanBudget, PlanEntry, PlanEventEntry, PlanSpent, StepDetail } from "@khala/client";

const MODE_LABELS: Readonly<Record<PlanEntry["mode"], string>> = {
  autopilot: "Autopilot: retry and switch agents by itself",
  step: "Pause for review after each step",
  all: "Run all steps, stop at the first failure",
};
export const MODES = Object.entries(MODE_LABELS) as (readonly [PlanEntry["mode"], string])[];

const FALLBACK_REASONS: Readonly<Record<string, string>> = { rate_limited: "has reached its rate limit", unavailable: "is unavailable" };
const PROVIDER_PREFIX = /^command:/;
const STOP_HINTS: Readonly<Record<string, string>> = {
  max_iterations: "To go on, continue in a new plan, which has attempts of its own.",
  no_tasks: "To go on, continue in a new plan. Completed steps are not repeated.",
  error: "To go on, continue in a new plan. Completed steps are not repeated.",
};

/** "Paused for your review of “Write tests”". `step` is the title of the step that the reason is about, if it is known. */
export function statusLabel({ status, reason, maxIterations }: Pick<PlanEntry, "status" | "reason" | "maxIterations">, step: string | null = null): string {
  switch (status) {
    case "idle":
      return "Not started";
    case "running":
      return "Running";
    case "pausing":
      return "Pausing after the steps that are running";
    case "stopping":
      return "Stopping…";
    case "paused":
      return pauseLabel(reason, step);
    case "stopped":
      return endLabel(reason, maxIterations, step);
  }
}

function pauseLabel(reason: PlanEntry["reason"], step: string | null): string {
  switch (reason) {
    case "review":
      return `Paused for your review${step === null ? "" : ` of “${step}”`}`;
    case "step_failed":
      return `Paused: ${failedLabel(step)}`;
    case "no_progress":
      return "Paused: the last attempts completed no step";
    case "all_limited":
      return "Paused: every agent has reached its rate limit";
    case "budget":
      return "Paused: the budget is used up";
    case "access":
      return "Paused: the person who started this plan can no longer write in this chat";
    default:
      return "Paused";
  }
}

function endLabel(reason: PlanEntry["reason"], maxIterations: number, step: string | null): string {
  switch (reason) {
    case "completed":
      return "Finished";
    case "max_iterations":
      return `Stopped: reached the limit of ${maxIterations.toLocaleString("en")} attempts`;
    case "no_tasks":
      return "Stopped: none of the steps that are left can run";
    case "error":
      return `Stopped: ${failedLabel(step)}`;
    default:
      return "Stopped";
  }
}

function failedLabel(step: string | null): string {
  return `${step === null ? "a step" : `“${step}”`} failed`;
}

/** What a person can do about a plan that waits for somebody, or that has stopped before its end; null if nothing has to be said. */
export function hintLabel({ status, reason }: Pick<PlanEntry, "status" | "reason">): string | null {
  if (status === "stopped") return STOP_HINTS[reason ?? ""] ?? null;
  if (status !== "paused") return null;
  switch (reason) {
    case "review":
      return "Check the result. If it isn’t good, change the step and run it again.";
    case "step_failed":
      return "Retry, edit or skip the step, then resume.";
    case "no_progress":
      return "No agent reported a step as complete. Edit the step or choose another agent, then resume.";
    case "all_limited":
      return "Resume when the limits have passed, or choose another agent in the settings.";
    case "budget":
      return "Raise the budget in the settings, then resume.";
    case "access":
      return "Anyone who can write in this chat can resume it. The steps then act for that person.";
    default:
      return null;
  }
}

/** "3 of 8 steps", with what else there is to know: "3 of 8 steps · 1 failed · 2 blocked". */
export function countsLabel({ counts }: Pick<PlanEntry, "counts">): string {
  const { completed, failed, blocked, skipped, cancelled } = counts;
  const more = [[failed, "failed"], [blocked, "blocked"], [skipped, "skipped"], [cancelled, "cancelled"]] as const;
  return [`${completed} of ${stepCount({ counts })} steps`, ...more.flatMap(([count, word]) => (count > 0 ? [`${count} ${word}`] : []))].join(" · ");
}

/** The number of all steps. The blocked ones are not among the open ones. */
export function stepCount({ counts }: Pick<PlanEntry, "counts">): number {
  const { open, running, completed, failed, skipped, cancelled, blocked } = counts;
  return open + running + completed + failed + skipped + cancelled + blocked;
}

/** "Attempt 3 of 50", before the first one "Up to 50 attempts" */
export function iterationLabel({ iteration, maxIterations }: Pick<PlanEntry, "iteration" | "maxIterations">): string {
  if (iteration === 0) return `Up to ${maxIterations.toLocaleString("en")} attempts`;
  return `Attempt ${iteration.toLocaleString("en")} of ${maxIterations.toLocaleString("en")}`;
}

/** "$0.42 of $5 · 1,204 of 9,000 tokens · 2 min 5 s"; empty if nothing was spent and there is no limit. */
export function spentLabel(spent: PlanSpent, budget: PlanBudget): string {
  const { tokens = 0, seconds = 0 } = spent;
  const [usd, maxUsd] = [Number(spent.usd ?? 0), budget.usd === undefined ? undefined : Number(budget.usd)];
  const of = (limit: string | undefined) => (limit === undefined ? "" : ` of ${limit}`);
  const time = (value: number) => formatDuration(1000 * value);
  const isShown = (value: number, limit: number | undefined) => value > 0 || limit !== undefined;
  return [
    isShown(usd, maxUsd) && `${formatUsd(usd)}${of(maxUsd === undefined ? undefined : formatUsd(maxUsd))}`,
    isShown(tokens, budget.tokens) && `${tokens.toLocaleString("en")}${of(budget.tokens?.toLocaleString("en"))} tokens`,
    isShown(Math.floor(seconds), budget.seconds) && `${time(seconds)}${of(budget.seconds === undefined ? undefined : time(budget.seconds))}`,
  ]
    .filter(Boolean)
    .join(" · ");
}

/** The share of the budget that is used, from 0 to 1, of the limit that is closest; null without a limit. */
export function budgetShare(spent: PlanSpent, budget: PlanBudget): number | null {
  const pairs = [[spent.usd, budget.usd], [spent.tokens, budget.tokens], [spent.seconds, budget.seconds]] as const;
  const shares = pairs.flatMap(([used = 0, limit]) => (limit === undefined ? [] : [Number(used) / Number(limit)]));
  return shares.length > 0 ? Math.min(1, Math.max(...shares)) : null;
}

/** The title of an agent; its name if the page does not know it. `titleOf` knows the page's agents. */
export function agentLabel(agent: string, titleOf: (agent: string) => string): string {
  if (agent === "default") return "Default agent";
  const title = titleOf(agent);
  return title === agent ? agent.replace(PROVIDER_PREFIX, "") : title;
}

/** Why the plan does not use its primary agent: "Fallback for Claude, which is unavailable". Null if it does. */
export function fallbackLabel({ agentReason }: Pick<PlanEntry, "agentReason">, primary: string | null): string | null {
  if (agentReason === undefined) return null;
  const first = primary ?? "the first agent";
  if (agentReason === "requested") return `Chosen instead of ${first}`;
  const reason = FALLBACK_REASONS[agentReason];
  return `Fallback for ${first}${reason === undefined ? "" : `, which ${reason}`}`;
}

type StepState = Pick<StepDetail, "status" | "attempts" | "agent" | "blocked" | "notBefore">;
export type StepFacts = { waitsFor: readonly string[]; isAsking: boolean; now: number; maxListed?: number };

/** "Waiting for approval", "Running · attempt 2", "Waits for “Build”", "Tries again in 8 s". */
export function stepLabel({ status, attempts, blocked, notBefore }: StepState, { waitsFor, isAsking, now, maxListed = 3 }: StepFacts): string {
  if (status === "running") return [isAsking ? "Waiting for approval" : "Running", attempts > 1 && `attempt ${attempts}`].filter(Boolean).join(" · ");
  if (status !== "open") return ENDED_LABELS[status];
  if (blocked) return `Blocked by ${listed(waitsFor, maxListed)}`;
  const wait = notBefore === undefined ? 0 : Date.parse(notBefore) - now;
  if (wait > 0) return `Tries again in ${formatDuration(wait + 999)}`;
  if (waitsFor.length > 0) return `Waits for ${listed(waitsFor, maxListed)}`;
  return attempts > 0 ? `Open · ${attempts} ${attempts === 1 ? "attempt" : "attempts"} so far` : "Open";
}

const ENDED_LABELS = { completed: "Completed", failed: "Failed", skipped: "Skipped", cancelled: "Cancelled" } as const;

function listed(titles: readonly string[], max: number): string {
  if (titles.length === 0) return "another step";
  const shown = titles.slice(0, max).map((title) => `“${title}”`);
  const more = titles.length - shown.length;
  return `${shown.join(", ")}${more > 0 ? ` and ${more} more` : ""}`;
}

type Names = { step: (id: string) => string; agent: (name: string) => string };

/** An event of a plan in one sentence; null for one that another event tells as well. */
export function eventLabel({ type, stepId, data }: Pick<PlanEventEntry, "type" | "stepId" | "data">, names: Names): string | null {
  const step = `“${stepId === undefined ? "A step" : names.step(stepId)}”`;
  const text = (name: string): string => (typeof data[name] === "string" ? data[name] : "");
  const agent = names.agent(text("agent"));
  const reason = text("reason") as NonNullable<PlanEntry["reason"]>;
  switch (type) {
    case "created":
      return "The plan was created.";
    case "started":
      return "The plan was started.";
    case "paused":
      return `${pauseLabel(reason, null)}.`;
    case "resumed":
      return "The plan was resumed.";
    case "stopped":
      return `${endLabel(reason, 0, null).replace(" of 0 attempts", " of attempts")}.`;
    case "mode_changed":
      return "The mode was changed.";
    case "budget_changed":
      return "The budget was changed.";
    case "iterations_added":
    case "iterations_removed":
      return "The limit of attempts was changed.";
    case "step_started":
      return `${step} started with ${agent}.`;
    case "step_completed":
      return `${step} completed.`;
    case "step_failed":
      return `${step} failed: ${text("error")}`;
    case "step_retrying":
      return `${step} failed and is tried again: ${text("error")}`;
    case "step_unfinished":
      return `${step} ended without completing.`;
    case "rate_limited":
      return `${agent} reached its rate limit in ${step}.`;
    case "agent_unavailable":
      return `${agent} could not start ${step}: ${text("error")}`;
    case "step_reopened":
      return data.interrupted === true ? `${step} was interrupted.` : `${step} was opened again.`;
    case "step_skipped":
      return data.byPerson === true ? `${step} was skipped.` : `${step} was skipped because it failed too often.`;
    case "step_cancelled":
      return `${step} was cancelled.`;
    case "agent_switched":
      return `${agent} does the next steps.`;
    case "recovery_attempted":
      return data.available === true ? `${agent} is available again.` : `${agent} is not available yet.`;
    case "edited":
      return "The plan was edited.";
    default:
      return null; // "pausing", "stopping", "no_progress" (a pause follows), costs, and types of later versions
  }
}

const NEED_LABELS = { approval: "A step needs your approval.", review: "A step is ready for your review.", paused: "The plan is paused and needs you.", failed: "A step failed." } as const;

/** What a plan needs, for a notification. */
export function needLabel(kind: keyof typeof NEED_LABELS): string {
  return NEED_LABELS[kind];
}

/** Paths of the icons of steps, in a box of 20 by 20. */
export const STEP_ICONS = {
  open: "M10 16a6 6 0 1 0 0-12 6 6 0 0 0 0 12z",
  running: "M10 4a6 6 0 1 1-6 6",
  completed: "M4.5 10.5 8.5 14.5 15.5 6",
  failed: "M5.5 5.5l9 9M14.5 5.5l-9 9",
  skipped: "M5 5l5 5-5 5M11 5l5 5-5 5",
  cancelled: "M10 16a6 6 0 1 0 0-12 6 6 0 0 0 0 12zM6 14l8-8",
  blocked: "M6 9V7a4 4 0 0 1 8 0v2M5 9h10v7H5z",
  asking: "M10 4v7M10 15v.5",
} as const;
