// The plans of a thread, as snapshots and deltas tell them.
//
// A frame has the progress of steps that changed, not the steps themselves. Invariant: the steps as the server had them at
// any revision from `stepsSince` on, with the progress of later revisions on top, are the steps as they are now.

import type { DeltaFrame, PlanEntry, SnapshotFrame, StepProgress } from "./frames.ts";

/** The progress of a step, and the revision of the thread at which it arrived. */
export interface StepState extends StepProgress {
  readonly revision: number;
}

/** A plan, with the progress of its steps since a revision of the thread. */
export interface PlanState {
  readonly id: string;
  readonly entry: PlanEntry;
  /** Steps that were read over REST at an earlier revision of the thread miss changes: read them again. */
  readonly stepsSince: number;
  /** The progress that arrived after `stepsSince`, one entry for each step. */
  readonly steps: readonly StepState[];
}

/** The changes of a plan. Without `entry`, it is unchanged. If `isWhole`, `steps` are all of them, otherwise each replaces or follows the held ones at `at`. */
export type PlanPatch =
  | { readonly id: string }
  | { readonly id: string; readonly entry: PlanEntry; readonly stepsSince: number; readonly isWhole: boolean; readonly steps: readonly { readonly at: number; readonly step: StepState }[] };

/** Whether steps of this plan may be under way. */
export function isPlanActive({ entry: { status } }: PlanState): boolean {
  return status === "running" || status === "pausing" || status === "stopping";
}

/** The revision of the thread from which on the steps of this plan must have been read. */
export function stepsNeededFrom({ entry, stepsSince }: PlanState): number {
  return Math.max(entry.editedRevision, stepsSince);
}

/** The plans of a snapshot. */
export function plansFromSnapshot({ revision, plans = [] }: Pick<SnapshotFrame, "revision" | "plans">): PlanState[] {
  return plans.map((entry) => ({ id: entry.id, entry, stepsSince: revision, steps: [] }));
}

/** The plans after a delta, the newest first. Unchanged ones stay the same objects. */
export function applyPlanChanges(held: readonly PlanState[], frame: Pick<DeltaFrame, "revision" | "plans" | "planSteps">): readonly PlanState[] {
  const { revision, plans = [] } = frame;
  if (plans.length === 0) return held;
  const after = new Map(held.map((plan) => [plan.id, plan]));
  for (const entry of plans) {
    const before = after.get(entry.id);
    const changed = frame.planSteps === null ? null : (frame.planSteps ?? []).filter(({ planId }) => planId === entry.id);
    const isKnown = before !== undefined && changed !== null;
    after.set(entry.id, { id: entry.id, entry, stepsSince: isKnown ? before.stepsSince : revision, steps: isKnown ? withProgress(before.steps, changed, revision) : [] });
  }
  return [...after.values()].sort((one, other) => (one.id < other.id ? 1 : -1));
}

/** The patches that turn `before` into `after`; null if nothing has changed. */
export function diffPlans(before: readonly PlanState[], after: readonly PlanState[]): PlanPatch[] | null {
  if (before === after || (before.length === after.length && before.every((plan, at) => plan === after[at]))) return null;
  const held = new Map(before.map((plan) => [plan.id, plan]));
  return after.map((plan) => diffPlan(held.get(plan.id), plan));
}

/** The plans after patches. Unchanged plans and steps stay the same objects. Throws if the patches were made for other plans. */
export function applyPlanPatches(before: readonly PlanState[], patches: readonly PlanPatch[]): PlanState[] {
  const held = new Map(before.map((plan) => [plan.id, plan]));
  return patches.map((patch) => {
    const own = held.get(patch.id);
    if (!("entry" in patch)) return own ?? mismatch(patch.id);
    const { id, entry, stepsSince, isWhole } = patch;
    const steps = isWhole ? [] : [...(own ?? mismatch(id)).steps];
    for (const { at, step } of patch.steps) steps[at] = step;
    return { id, entry, stepsSince, steps };
  });
}

function diffPlan(before: PlanState | undefined, after: PlanState): PlanPatch {
  const { id, entry, stepsSince } = after;
  if (before === after) return { id };
  const isWhole = before?.stepsSince !== stepsSince || !before.steps.every((step, at) => step.id === after.steps[at]?.id);
  const changed = after.steps.flatMap((step, at) => (!isWhole && before.steps[at] === step ? [] : [{ at, step }]));
  return { id, entry, stepsSince, isWhole, steps: changed };
}

function withProgress(held: readonly StepState[], changed: readonly StepProgress[], revision: number): readonly StepState[] {
  if (changed.length === 0) return held;
  const after = new Map(held.map((step) => [step.id, step]));
  for (const step of changed) after.set(step.id, { ...step, revision });
  return [...after.values()];
}

function mismatch(id: string): never {
  throw new Error(`This patch was made for another state: plan ${id} differs.`);
}
