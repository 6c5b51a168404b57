// Steps that were read over REST, with the progress that came in the feed since.

import type { StepDetail, StepState } from "@khala/client";

/** The steps with this progress. A field that is absent from the progress has no value any more. */
export function mergeProgress(steps: readonly StepDetail[], changed: readonly StepState[]): readonly StepDetail[] {
  if (changed.length === 0) return steps;
  const newer = new Map(changed.map((step) => [step.id, step]));
  return steps.map((step) => {
    const progress = newer.get(step.id);
    return progress ? { ...progress, planned: step.planned, ...(step.blocked !== undefined && { blocked: step.blocked }) } : step;
  });
}
