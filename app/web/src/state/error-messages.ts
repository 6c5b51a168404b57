// Messages for people about failed requests.

import { ApiError } from "@khala/client";
import { RUN_ACTIVE, UNREACHABLE } from "./strings.ts";

const MESSAGES: Readonly<Record<string, string>> = {
  unreachable: UNREACHABLE,
  run_active: RUN_ACTIVE,
  rate_limited: "Too many requests. Try again in a moment.",
  budget_exhausted: "The budget for this chat is used up.",
  payload_too_large: "This message is too long.",
  unavailable: "The server is unavailable. Try again in a moment.",
  thread_not_found: "This chat no longer exists.",
  forbidden: "You can only view this chat.",
  unauthorized: "You can’t write in this chat.",
};
const PERMANENT_CODES = ["payload_too_large", "invalid_input", "thread_not_found", "forbidden", "unauthorized"];

/** The message for a failed request. Any error other than an ApiError means that the server could not be reached. */
export function errorMessage(error: unknown): string {
  return error instanceof ApiError ? messageForCode(error.code, error.message, error.errors) : UNREACHABLE;
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
