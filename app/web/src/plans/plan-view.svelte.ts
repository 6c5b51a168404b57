// The plan that the page shows, as the bar above the composer, the conversation and the panel know it.

import type { PlanState, StepDetail } from "@khala/client";
import type { PlanDetails } from "./plan-details.svelte.ts";
import type { StepApproval } from "./plan-needs.ts";

export interface ShownPlan {
  readonly plan: PlanState;
  readonly details: PlanDetails | null;
  readonly steps: readonly StepDetail[] | null;
  readonly approvals: readonly StepApproval[];
  readonly reasonStep: StepDetail | null;
}

class PlanView {
  shown: ShownPlan | null = $state.raw(null);
  /** Whether its card in the conversation is in sight: then the bar above the composer is not needed. */
  isCardInSight = $state(false);
}

export const planView = new PlanView();
