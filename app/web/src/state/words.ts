// Errors of requests, said to a person.

import { ApiError } from "../khala/requests.ts";

const WORDS: Readonly<Record<string, string>> = {
  run_active: "An answer is still being written; wait for it or stop it.",
  rate_limited: "That was too much at once.",
  budget_exhausted: "The budget for this chat is used up for now.",
  payload_too_large: "The text is too long for the server.",
  unavailable: "The server can’t take it right now.",
  thread_not_found: "This chat is not on the server any more.",
  forbidden: "You may look on, not write here.",
  unauthorized: "You may not write in this chat.",
};
const UNREACHABLE = "The server can’t be reached.";
const NO_USE_REPEATING = ["payload_too_large", "invalid_input", "thread_not_found", "forbidden", "unauthorized"];

/** An error of a request, said to the person. */
export function inWords(error: unknown): string {
  return error instanceof ApiError ? wordsOf(error.code, error.message, error.errors) : UNREACHABLE;
}

/** The words for a code; what the server said itself where there are none. */
export function wordsOf(code: string, message: string, errors: readonly { message: string }[] = []): string {
  if (code === "unreachable") return UNREACHABLE;
  if (code === "invalid_input") return `The server did not accept it: ${errors[0]?.message ?? message}`;
  return WORDS[code] ?? message;
}

/** Whether the same send would be refused again, whenever it is made. */
export function isFinal(code: string): boolean {
  return NO_USE_REPEATING.includes(code);
}
