// The attempts of a step, as the events of the step tell them.

import type { PlanEventEntry } from "@khala/client";
import { m } from "../i18n/messages.ts";

/** An attempt of a step. `end` says how it ended, in words; null while it is under way. */
export type StepAttempt = { readonly number: number; readonly runId: string | null; readonly agent: string; readonly end: string | null };

/** The attempts, in order. */
export function attemptsFrom(events: readonly Pick<PlanEventEntry, "type" | "data">[]): StepAttempt[] {
  const attempts: StepAttempt[] = [];
  for (const { type, data } of events) {
    const text = (name: string): string => (typeof data[name] === "string" ? data[name] : "");
    if (type === "step_started") {
      attempts.push({ number: Number(data.attempt), runId: text("runId") || null, agent: text("agent"), end: null });
      continue;
    }
    const last = attempts.at(-1);
    const end = endLabel(type, text("error"), data.interrupted === true);
    if (last?.end === null && end !== null) attempts[attempts.length - 1] = { ...last, end };
  }
  return attempts;
}

function endLabel(type: string, error: string, isInterrupted: boolean): string | null {
  switch (type) {
    case "step_completed":
      return m.completed();
    case "step_failed":
    case "step_retrying":
      return error ? m.failed_error({ error }) : m.failed();
    case "step_unfinished":
      return m.ended_without_completing_the_step();
    case "rate_limited":
      return m.reached_a_rate_limit();
    case "agent_unavailable":
      return error ? m.could_not_start_error({ error }) : m.could_not_start();
    case "step_reopened":
      return isInterrupted ? m.interrupted() : null;
    case "step_skipped":
      return m.skipped();
    case "step_cancelled":
      return m.cancelled();
    default:
      return null;
  }
}
