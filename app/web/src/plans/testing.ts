// Plans for tests.

import type { PlanEntry, PlanState, StepDetail } from "@khala/client";

const TIME = "2031-01-01T00:00:00Z";
const COUNTS = { open: 0, running: 0, completed: 0, failed: 0, skipped: 0, cancelled: 0, blocked: 0 };

export function planEntry({ counts = {}, ...changes }: Partial<Omit<PlanEntry, "counts">> & { counts?: Partial<PlanEntry["counts"]> } = {}): PlanEntry {
  return {
    ...{ id: "p", threadId: "t", title: "Build a shop", mode: "all", status: "running", agent: "default", iteration: 1, maxIterations: 50, spent: {}, budget: {} },
    ...{ eventSeq: 1, revision: 5, editedRevision: 5, createdAt: TIME, updatedAt: TIME, ...changes, counts: { ...COUNTS, ...counts } },
  };
}

export function planState(entry: PlanEntry, changes: Partial<PlanState> = {}): PlanState {
  return { id: entry.id, entry, stepsSince: 5, steps: [], ...changes };
}

export function stepDetail(id: string, changes: Partial<StepDetail> = {}): StepDetail {
  return { planId: "p", id, status: "open", attempts: 0, planned: { id, title: `Step ${id}` }, ...changes };
}
