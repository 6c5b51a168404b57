// Edits of a plan's steps: their order, the fields of the form, and where an error of the server belongs.

import type { FieldError, PlannedStep } from "@khala/client";
import { m } from "../i18n/messages.ts";

/** The fields of the step form, as typed. */
export type StepFields = { title: string; instructions: string; acceptance: string; phase: string; agent: string; dependsOn: readonly string[] };

export type StepErrors = Partial<Record<keyof StepFields | "form", string>>;

const FIELDS: readonly string[] = ["title", "instructions", "acceptance", "phase", "agent", "dependsOn"];

/** The ids with the one at `from` moved to `to`; null if that is no other place in the list. */
export function moved(ids: readonly string[], from: number, to: number): string[] | null {
  const id = ids[from];
  if (id === undefined || to < 0 || to >= ids.length || from === to) return null;
  const rest = ids.filter((_, at) => at !== from);
  return [...rest.slice(0, to), id, ...rest.slice(to)];
}

export function fieldsOf(step: PlannedStep | null): StepFields {
  return {
    title: step?.title ?? "",
    instructions: step?.instructions ?? "",
    acceptance: (step?.acceptance ?? []).join("\n"),
    phase: step?.phase ?? "",
    agent: step?.agent ?? "",
    dependsOn: step?.dependsOn ?? [],
  };
}

/** The step of these fields. What the form does not show stays as it was in `before`. */
export function stepFrom({ title, instructions, acceptance, phase, agent, dependsOn }: StepFields, id: string, before: PlannedStep | null): PlannedStep {
  const criteria = acceptance.split("\n").map((line) => line.trim()).filter(Boolean);
  return {
    id,
    title: title.trim(),
    ...(instructions.trim() && { instructions: instructions.trim() }),
    ...(criteria.length > 0 && { acceptance: criteria }),
    ...(dependsOn.length > 0 && { dependsOn: [...dependsOn] }),
    ...(before?.priority !== undefined && { priority: before.priority }),
    ...(phase.trim() && { phase: phase.trim() }),
    ...(agent.trim() && { agent: agent.trim() }),
  };
}

/** An id for a new step that none has yet: "step-7". */
export function newStepId(ids: readonly string[]): string {
  const known = new Set(ids);
  for (let number = ids.length + 1; ; number++) if (!known.has(`step-${number}`)) return `step-${number}`;
}

/** The errors by field. `change[0].title` belongs to the title, `change[0]` to the form; a cycle or an unknown step to the dependencies. */
export function errorsByField(errors: readonly FieldError[]): StepErrors {
  const found: StepErrors = {};
  for (const { path, message } of errors) {
    const last = path.split(/[.[\]]+/).findLast((part) => FIELDS.includes(part));
    const field = (last ?? (message.includes("depend") ? "dependsOn" : "form")) as keyof StepErrors;
    found[field] ??= message;
  }
  return found;
}

export const EDITED_MEANWHILE = m.somebody_has_edited_this_plan_meanwhile();

/** Codes of errors whose message by the server says most. */
export const REFUSALS: readonly string[] = ["conflict", "not_found", "forbidden", "invalid_input"];
