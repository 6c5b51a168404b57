// What a step of a plan waits for.

import type { StepDetail } from "@khala/client";

type OrderedStep = Pick<StepDetail, "id" | "status" | "blocked" | "planned">;
type TimedStep = OrderedStep & Pick<StepDetail, "notBefore">;
/** A step that is tried again in `waitMs`. */
export type NextRetry = { readonly title: string; readonly waitMs: number };

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

/** The first of the steps that are tried again, if the plan can only wait for it at the time `now` (ms); null if another step may start. */
export function nextRetry(steps: readonly TimedStep[], now: number): NextRetry | null {
  const byId = new Map(steps.map((step) => [step.id, step]));
  const ready = steps.filter((step) => step.status === "open" && !step.blocked && waitsFor(step, byId).length === 0);
  const retries = ready.map(({ planned, notBefore }) => ({ title: planned.title, waitMs: notBefore === undefined ? 0 : Date.parse(notBefore) - now }));
  const [first] = retries.sort((one, other) => one.waitMs - other.waitMs);
  return first !== undefined && first.waitMs > 0 ? first : null;
}
