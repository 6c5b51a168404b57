// Names of schedules and of why they have paused or ended, in words.

import type { Schedule } from "@khala/client";
import { m } from "../i18n/messages.ts";

const MAX_NAME_CHARACTERS = 60;

const REASONS: Readonly<Record<string, string>> = {
  failed: m.paused_because_sending_failed(),
  runs_failed: m.paused_because_answers_failed(),
  forbidden: m.paused_because_you_may_not_write(),
  invalid_input: m.paused_because_the_model_is_gone(),
  done: m.ended_after_the_last_time(),
  thread_deleted: m.ended_with_its_chat(),
};

/** The name of a schedule, or the beginning of its message. */
export function scheduleName({ name, text, planId }: Schedule): string {
  if (name !== undefined) return name;
  const line = (text ?? "").trim().split("\n", 1)[0]?.trimEnd() ?? "";
  if (line === "") return planId === undefined ? m.scheduled_message() : m.starts_a_plan();
  return line.length > MAX_NAME_CHARACTERS ? `${line.slice(0, MAX_NAME_CHARACTERS).trimEnd()}…` : line;
}

/** Why it sends nothing now; empty while it does. */
export function statusLabel({ status, reason }: Schedule): string {
  if (status === "active") return "";
  const known = reason === undefined ? undefined : REASONS[reason];
  return known ?? (status === "paused" ? m.paused() : m.schedule_has_ended());
}
