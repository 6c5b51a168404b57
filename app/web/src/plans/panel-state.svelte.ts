// What the panel of plans shows: one plan, or the form for a new one.

class PanelState {
  isOpen = $state(false);
  /** The plan that the person chose; null for the newest one that has not stopped. */
  planId: string | null = $state(null);
  isCreating = $state(false);
  /** The step to open and scroll to. */
  targetStepId: string | null = $state(null);
  /** Whether that step is opened in its form. */
  isEditing = false;

  /** Open the panel, at this step of a plan, or at the form for it. */
  open(planId: string | null = null, stepId: string | null = null, isEditing = false): void {
    this.isOpen = true;
    this.isCreating = false;
    if (planId !== null) this.planId = planId;
    this.targetStepId = stepId;
    this.isEditing = isEditing;
  }
}

export const panelState = new PanelState();
