// The tries of a step, as the events of the step tell them.

import type { PlanEventEntry } from "@khala/client";
import { eventError } from "./step-failures.ts";
import { m } from "../i18n/messages.ts";

/** A try of a step: an attempt, in the words of the protocol. `end` says how it ended, in words; null while it is under way. */
export type StepTry = { readonly number: number; readonly runId: string | null; readonly agent: string; readonly end: string | null };

/** The tries, in order. */
export function triesFrom(events: readonly Pick<PlanEventEntry, "type" | "data">[]): StepTry[] {
  const tries: StepTry[] = [];
  for (const { type, data } of events) {
    const text = (name: string): string => (typeof data[name] === "string" ? data[name] : "");
    if (type === "step_started") {
      tries.push({ number: Number(data.attempt), runId: text("runId") || null, agent: text("agent"), end: null });
      continue;
    }
    const last = tries.at(-1);
    const end = endLabel(type, eventError(data), data.interrupted === true);
    if (last?.end === null && end !== null) tries[tries.length - 1] = { ...last, end };
  }
  return tries;
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
