// Messages for people about failed requests.

import { ApiError } from "@khala/client";
import { RUN_ACTIVE, UNREACHABLE } from "./strings.ts";
import { m } from "../i18n/messages.ts";

const MESSAGES: Readonly<Record<string, string>> = {
  unreachable: UNREACHABLE,
  run_active: RUN_ACTIVE,
  rate_limited: m.too_many_requests_try_again_in_a_moment(),
  budget_exhausted: m.the_budget_for_this_chat_is_used_up(),
  payload_too_large: m.this_message_is_too_long(),
  unavailable: m.the_server_is_unavailable_try_again_in_a(),
  thread_not_found: m.this_chat_no_longer_exists(),
  forbidden: m.you_can_only_view_this_chat(),
  unauthorized: m.you_cant_write_in_this_chat(),
};
const PERMANENT_CODES = ["payload_too_large", "invalid_input", "thread_not_found", "forbidden", "unauthorized"];

/** The message for a failed request. Any error other than an ApiError means that the server could not be reached. */
export function errorMessage(error: unknown): string {
  if (!(error instanceof ApiError)) return UNREACHABLE;
  if (error.code === "unknown") return error.status === 404 ? m.not_found_on_the_server() : m.unexpected_answer();
  return messageForCode(error.code, error.message, error.errors);
}

/** Whether the server no longer has what was asked for. */
export function isGone(error: unknown): boolean {
  return error instanceof ApiError && error.status === 404;
}

/** The message for an error code; the server's own message for a code without one and for invalid fields. */
export function messageForCode(code: string, message: string, errors: readonly { message: string }[] = []): string {
  if (code === "invalid_input") return errors[0]?.message ?? message;
  return MESSAGES[code] ?? message;
}

/** Whether a retry of the same request is always refused. */
export function isPermanent(code: string): boolean {
  return PERMANENT_CODES.includes(code);
}
