// The states of plans, their steps and their events in words.

import { formatDuration, formatNumber, formatPercent, formatUnits, formatUsd, joinParts } from "../state/format.ts";
import type { PlanBudget, PlanEntry, PlanEventEntry, PlanSpent, StepDetail } from "@khala/client";
import { NEAR_SHARE } from "./plan-looks.ts";
import { eventError } from "./step-failures.ts";
import type { NextRetry } from "./step-order.ts";
import { m } from "../i18n/messages.ts";

const MODE_LABELS: Readonly<Record<PlanEntry["mode"], string>> = {
  autopilot: m.autopilot_retry_and_switch_agents_by_itself(),
  step: m.pause_for_review_after_each_step(),
  all: m.run_all_steps_stop_at_the_first_failure(),
};
export const MODES = Object.entries(MODE_LABELS) as (readonly [PlanEntry["mode"], string])[];

const FALLBACK_LABELS: Readonly<Record<string, (inputs: { agent: string }) => string>> = { rate_limited: m.fallback_for_limited, unavailable: m.fallback_for_unavailable };
const MAX_TITLE_CHARACTERS = 48;
const PROVIDER_PREFIX = /^command:/;
const STOP_HINTS: Readonly<Record<string, string>> = {
  max_iterations: m.to_go_on_continue_in_a_new_plan_tries_from_0(),
  no_tasks: m.to_go_on_continue_in_a_new_plan_completed(),
  error: m.to_go_on_continue_in_a_new_plan_completed(),
};

/** "Paused for your review of “Write tests”". `step` is the title of the step that the reason is about, if it is known. */
export function statusLabel({ status, reason, maxIterations }: Pick<PlanEntry, "status" | "reason" | "maxIterations">, step: string | null = null): string {
  switch (status) {
    case "idle":
      return m.not_started();
    case "running":
      return m.running();
    case "pausing":
      return m.pausing_after_the_steps_that_are_running();
    case "stopping":
      return m.stopping();
    case "paused":
      return pauseLabel(reason, step);
    case "stopped":
      return endLabel(reason, maxIterations, step);
  }
}

/** What a running plan does while no step runs: "Retrying “Build” in 20 s". `retry` is the one for which it waits, null if a step may start; `isDelayed`: it starts only after a pause. */
export function betweenLabel(retry: NextRetry | null, isDelayed = false): string {
  if (retry === null) return isDelayed ? m.waiting_to_start_the_next_step() : m.starting_the_next_step();
  return m.retrying_step_in({ step: m.quoted({ text: shortened(retry.title) }), time: formatDuration(retry.waitMs + 999) });
}

/** A text as far as there is room for it in a status. */
export function shortened(text: string, maxCharacters = MAX_TITLE_CHARACTERS): string {
  return text.length <= maxCharacters ? text : `${text.slice(0, maxCharacters - 1).trimEnd()}…`;
}

function pauseLabel(reason: PlanEntry["reason"], step: string | null): string {
  switch (reason) {
    case "review":
      return step === null ? m.paused_for_your_review() : m.paused_for_your_review_of({ step: shortened(step) });
    case "step_failed":
      return step === null ? m.paused_a_step_failed() : m.paused_step_failed({ step: shortened(step) });
    case "no_progress":
      return m.paused_the_last_tries_completed_no_step();
    case "all_limited":
      return m.paused_every_agent_has_reached_its_rate();
    case "budget":
      return m.paused_the_budget_is_used_up();
    case "access":
      return m.paused_the_person_who_started_this_plan_can();
    default:
      return m.paused();
  }
}

function endLabel(reason: PlanEntry["reason"], maxIterations: number, step: string | null): string {
  switch (reason) {
    case "completed":
      return m.finished();
    case "max_iterations":
      return maxIterations > 0 ? m.stopped_try_limit({ count: maxIterations }) : m.stopped_try_limit_unknown();
    case "no_tasks":
      return m.stopped_none_of_the_steps_that_are_left_can();
    case "error":
      return step === null ? m.stopped_a_step_failed() : m.stopped_step_failed({ step: shortened(step) });
    default:
      return m.stopped();
  }
}

/** What a person can do about a plan that waits for somebody, or that has stopped before its end; null if nothing has to be said. `isSolved`: nothing is left to do about the step that failed. */
export function hintLabel({ status, reason }: Pick<PlanEntry, "status" | "reason">, { isSolved = false } = {}): string | null {
  if (status === "stopped") return STOP_HINTS[reason ?? ""] ?? null;
  if (status !== "paused") return null;
  switch (reason) {
    case "review":
      return m.check_the_result_if_it_isnt_good_change_the();
    case "step_failed":
      return isSolved ? m.resume_to_go_on_with_the_plan() : m.retry_the_step_or_edit_or_skip_it();
    case "no_progress":
      return m.no_agent_reported_a_step_as_complete_edit();
    case "all_limited":
      return m.resume_when_the_limits_have_passed_or();
    case "budget":
      return m.raise_the_budget_in_the_settings_then_resume();
    case "access":
      return m.anyone_who_can_write_in_this_chat_can();
    default:
      return null;
  }
}

/** "3 of 8 steps" */
export function completedLabel({ counts }: Pick<PlanEntry, "counts">): string {
  return m.steps_completed_of({ completed: formatNumber(counts.completed), count: stepCount({ counts }) });
}

/** The other steps that have ended or cannot start: "1 failed · 2 blocked · 1 skipped". `isShort`: only those that may need a person. */
export function otherCountsLabel({ counts: { failed, blocked, skipped, cancelled } }: Pick<PlanEntry, "counts">, { isShort }: { isShort: boolean }): string {
  const needs = [[failed, m.count_failed], [blocked, m.count_blocked]] as const;
  const shown = isShort ? needs : ([...needs, [skipped, m.count_skipped], [cancelled, m.count_cancelled]] as const);
  return joinParts(shown.flatMap(([count, label]) => (count > 0 ? [label({ count: formatNumber(count) })] : [])));
}

/** The number of all steps. The blocked ones are not among the open ones. */
export function stepCount({ counts }: Pick<PlanEntry, "counts">): number {
  const { open, running, completed, failed, skipped, cancelled, blocked } = counts;
  return open + running + completed + failed + skipped + cancelled + blocked;
}

/** A part of what a plan has spent. `isNear`: most of its limit is used. */
export type SpentPart = { readonly text: string; readonly isNear: boolean };

/** "Tries: 42 of 50"; empty while most of the limit is left. Each start of a step is one try. */
export function triesLabel({ iteration, maxIterations }: Pick<PlanEntry, "iteration" | "maxIterations">): string {
  return iteration / maxIterations >= NEAR_SHARE ? m.tries_of({ number: formatNumber(iteration), max: formatNumber(maxIterations) }) : "";
}

/** "$0.42 of $5", "8,200 of 9,000 tokens, 91%", "2 min 5 s"; empty if nothing was spent and there is no limit. */
export function spentParts(spent: PlanSpent, budget: PlanBudget): SpentPart[] {
  const [usd, tokens, seconds] = [Number(spent.usd ?? 0), spent.tokens ?? 0, Math.floor(spent.seconds ?? 0)];
  const time = (value: number) => formatDuration(1000 * value);
  return [
    ...spentPart(usd, budget.usd === undefined ? undefined : Number(budget.usd), formatUsd, m.spent_of),
    ...spentPart(tokens, budget.tokens, (count) => m.tokens_count({ count }), m.tokens_spent_of, formatNumber),
    ...spentPart(seconds, budget.seconds, time, m.spent_of),
  ];
}

type SpentOf = (inputs: { spent: string; limit: string }) => string;

function spentPart(value: number, limit: number | undefined, amount: (value: number) => string, spentOf: SpentOf, format = amount): SpentPart[] {
  if (limit === undefined) return value > 0 ? [{ text: amount(value), isNear: false }] : [];
  const text = spentOf({ spent: format(value), limit: format(limit) });
  const isNear = value / limit >= NEAR_SHARE;
  return [{ text: isNear ? m.spent_share({ spent: text, percent: formatPercent(Math.floor((100 * value) / limit) / 100) }) : text, isNear }];
}

/** The title of an agent; its name if the page does not know it. `titleOf` knows the page's agents. */
export function agentLabel(agent: string, titleOf: (agent: string) => string): string {
  if (agent === "default") return m.default_agent();
  const title = titleOf(agent);
  return title === agent ? agent.replace(PROVIDER_PREFIX, "") : title;
}

/** Why the plan does not use its primary agent: "Fallback for Claude, which is unavailable". Null if it does. */
export function fallbackLabel({ agentReason }: Pick<PlanEntry, "agentReason">, primary: string | null): string | null {
  if (agentReason === undefined) return null;
  const first = primary ?? m.the_first_agent();
  if (agentReason === "requested") return m.chosen_instead_of({ agent: first });
  return (FALLBACK_LABELS[agentReason] ?? m.fallback_for)({ agent: first });
}

type StepState = Pick<StepDetail, "status" | "attempts" | "agent" | "blocked" | "notBefore">;
export type StepFacts = { waitsFor: readonly string[]; isAsking: boolean; now: number; maxListed?: number };

/** "Waiting for approval", "Running · try 2", "Waits for “Build”", "Retrying in 8 s". */
export function stepLabel({ status, attempts, blocked, notBefore }: StepState, { waitsFor, isAsking, now, maxListed = 3 }: StepFacts): string {
  if (status === "running") return joinParts([isAsking ? m.waiting_for_approval() : m.running(), attempts > 1 && m.try_number_inline({ number: formatNumber(attempts) })]);
  if (status !== "open") return ENDED_LABELS[status];
  if (blocked) return m.blocked_by({ steps: listed(waitsFor, maxListed) });
  const wait = notBefore === undefined ? 0 : Date.parse(notBefore) - now;
  if (wait > 0) return m.tries_again_in({ time: formatDuration(wait + 999) });
  if (waitsFor.length > 0) return m.waits_for({ steps: listed(waitsFor, maxListed) });
  return attempts > 0 ? m.tries_so_far({ count: attempts }) : m.not_started();
}

const ENDED_LABELS = { completed: m.completed(), failed: m.failed(), skipped: m.skipped(), cancelled: m.cancelled() } as const;

function listed(titles: readonly string[], max: number): string {
  if (titles.length === 0) return m.another_step();
  const shown = formatUnits(titles.slice(0, max).map((title) => m.quoted({ text: title })));
  return titles.length > max ? m.list_and_more({ list: shown, count: titles.length - max }) : shown;
}

type Names = { step: (id: string) => string; agent: (name: string) => string };

/** An event of a plan in one sentence; null for one that another event tells as well. */
export function eventLabel({ type, stepId, data }: Pick<PlanEventEntry, "type" | "stepId" | "data">, names: Names): string | null {
  const step = stepId === undefined ? m.a_step() : m.quoted({ text: names.step(stepId) });
  const text = (name: string): string => (typeof data[name] === "string" ? data[name] : "");
  const agent = names.agent(text("agent"));
  const reason = text("reason") as NonNullable<PlanEntry["reason"]>;
  switch (type) {
    case "created":
      return m.the_plan_was_created();
    case "started":
      return m.the_plan_was_started();
    case "paused":
      return m.sentence({ text: pauseLabel(reason, null) });
    case "resumed":
      return m.the_plan_was_resumed();
    case "stopped":
      return m.sentence({ text: endLabel(reason, 0, null) });
    case "mode_changed":
      return m.the_mode_was_changed();
    case "budget_changed":
      return m.the_budget_was_changed();
    case "iterations_added":
    case "iterations_removed":
      return m.the_limit_of_tries_was_changed();
    case "step_started":
      return m.step_started_with_agent({ step, agent });
    case "step_completed":
      return m.step_completed({ step });
    case "step_failed":
      return m.step_failed_error({ step, error: eventError(data) });
    case "step_retrying":
      return m.step_failed_retried({ step, error: eventError(data) });
    case "step_unfinished":
      return m.step_ended_without_completing({ step });
    case "rate_limited":
      return m.agent_reached_its_rate_limit_in_step({ agent, step });
    case "agent_unavailable":
      return m.agent_could_not_start_step({ agent, step, error: eventError(data) });
    case "step_reopened":
      return data.interrupted === true ? m.step_was_interrupted({ step }) : m.step_was_opened_again({ step });
    case "step_skipped":
      return data.byPerson === true ? m.step_was_skipped({ step }) : m.step_was_skipped_because_it_failed_too_often({ step });
    case "step_cancelled":
      return m.step_was_cancelled({ step });
    case "agent_switched":
      return m.agent_does_the_next_steps({ agent });
    case "recovery_attempted":
      return data.available === true ? m.agent_is_available_again({ agent }) : m.agent_is_not_available_yet({ agent });
    case "edited":
      return m.the_plan_was_edited();
    default:
      return null; // "pausing", "stopping", "no_progress" (a pause follows), costs, and types of later versions
  }
}

const NEED_LABELS = { approval: m.a_step_needs_your_approval(), review: m.a_step_is_ready_for_your_review(), paused: m.the_plan_is_paused_and_needs_you(), failed: m.a_step_failed() } as const;

/** What a plan needs, for a notification. */
export function needLabel(kind: keyof typeof NEED_LABELS): string {
  return NEED_LABELS[kind];
}
