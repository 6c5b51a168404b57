// What people read about an answer or a step of a plan that failed: a sentence by the code and the cause of its error. The server's own words are its details.

import type { MessageError } from "../state/page-model.ts";
import { m } from "../i18n/messages.ts";

const LABELS: Readonly<Record<string, string>> = {
  rate_limited: m.failure_rate_limited(),
  overloaded: m.failure_overloaded(),
  unavailable: m.failure_unavailable(),
  connection_lost: m.failure_connection_lost(),
  timeout: m.failure_timeout(),
  invalid_response: m.failure_invalid_response(),
  format_mismatch: m.failure_invalid_response(),
  tool_not_called: m.failure_invalid_response(),
  no_response: m.failure_no_response(),
  refused: m.failure_refused(),
  option_refused: m.failure_option_refused(),
  context_exceeded: m.failure_context_exceeded(),
  budget_exhausted: m.reached_the_budget_limit(),
  agent_not_found: m.failure_agent_not_found(),
  conflict: m.failure_conflict(),
  failed: m.failure_agent(),
  no_worker: m.failure_no_worker(),
  interrupted: m.failure_interrupted(),
  step_timeout: m.failure_step_timeout(),
  unfinished: m.ended_without_completing_the_step(),
  internal: m.unexpected_answer(),
};

/** Why a provider refused a request. */
const CAUSES: Readonly<Record<string, string>> = {
  invalid_key: m.failure_invalid_key(),
  quota_exhausted: m.failure_quota_exhausted(),
  unknown_model: m.failure_unknown_model(),
  content_filtered: m.failure_content_filtered(),
};

/** The sentence about an error; the server's own words for a code that has none, such as one of an agent in Python. */
export function failureLabel({ code, cause, reason }: Pick<MessageError, "code" | "cause" | "reason">): string {
  return labelOf(CAUSES, cause) ?? labelOf(LABELS, code) ?? reason;
}

function labelOf(labels: Readonly<Record<string, string>>, key: string | undefined): string | undefined {
  return key !== undefined && Object.hasOwn(labels, key) ? labels[key] : undefined;
}
