// What a step of a plan waits for.

import type { StepDetail } from "@khala/client";

type OrderedStep = Pick<StepDetail, "id" | "status" | "blocked" | "planned">;

/**
 * The titles of the steps because of which this one does not run: those that block it, or else those that have not ended.
 *
 * A step that a person skipped holds up nothing. Its state does not tell it from one that failed too often; the blocked one does.
 */
export function waitsFor<T extends OrderedStep>({ planned, blocked }: OrderedStep, byId: ReadonlyMap<string, T>): string[] {
  const before = (planned.dependsOn ?? []).flatMap((id) => byId.get(id) ?? []);
  const titles = (holds: (step: OrderedStep) => boolean) => before.filter(holds).map((step) => step.planned.title);
  if (!blocked) return titles(({ status }) => status === "open" || status === "running");
  const certain = titles(({ status, blocked: isBlocked }) => status === "failed" || status === "cancelled" || (status === "open" && isBlocked === true));
  return certain.length > 0 ? certain : titles(({ status }) => status === "skipped");
}
