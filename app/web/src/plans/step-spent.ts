// What the tries of a step have taken: time and cost.

import { formatDuration, formatUsd, joinParts } from "../state/format.ts";
import type { PlanEventEntry, StepDetail } from "@khala/client";

export type StepSpent = { readonly usd: number; readonly seconds: number };

/** The sums of all tries that have ended, by the ids of their steps. */
export function spentBySteps(events: readonly Pick<PlanEventEntry, "stepId" | "data">[]): ReadonlyMap<string, StepSpent> {
  const sums = new Map<string, StepSpent>();
  for (const { stepId, data } of events) {
    const { spent } = data;
    if (stepId === undefined || typeof spent !== "object" || spent === null) continue;
    const { usd, seconds } = sums.get(stepId) ?? { usd: 0, seconds: 0 };
    sums.set(stepId, { usd: usd + amount(spent, "usd"), seconds: seconds + amount(spent, "seconds") });
  }
  return sums;
}

function amount(spent: object, name: string): number {
  const value = Number((spent as Record<string, unknown>)[name] ?? 0);
  return Number.isFinite(value) ? value : 0;
}

/** "$0.02 · 2 min 5 s"; for a step that is running the time of its try so far. Empty if nothing is known. `now` in ms, by the clock of the server. */
export function stepSpentLabel({ status, startedAt }: Pick<StepDetail, "status" | "startedAt">, spent: StepSpent | undefined, now: number): string {
  const seconds = status === "running" ? (now - Date.parse(startedAt ?? "")) / 1000 : (spent?.seconds ?? 0);
  return joinParts([spent !== undefined && spent.usd > 0 && formatUsd(spent.usd), seconds >= 1 && formatDuration(1000 * seconds)]);
}
