// Why a try of a step failed, in the words that answers have, too. The step has the server's words, and its events the code.

import type { PlanEventEntry, StepDetail } from "@khala/client";
import { failureLabel } from "../conversation/failure-labels.ts";

/** The error of an event in words; empty if it has none. */
export function eventError(data: PlanEventEntry["data"]): string {
  const text = (name: string): string | undefined => (typeof data[name] === "string" ? data[name] : undefined);
  const [reason, code, cause] = [text("error"), text("code"), text("cause")];
  return reason ? failureLabel({ reason, ...(code !== undefined && { code }), ...(cause !== undefined && { cause }) }) : "";
}

/** The error of a step in words, by its newest event about that error; empty if it has none. The server's words stay if no such event is known. */
export function stepError({ id, error }: Pick<StepDetail, "id" | "error">, events: readonly Pick<PlanEventEntry, "stepId" | "data">[]): string {
  if (!error) return "";
  const event = events.findLast(({ stepId, data }) => stepId === id && data.error === error);
  return event ? eventError(event.data) : error;
}
