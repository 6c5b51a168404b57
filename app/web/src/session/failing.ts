// Why a request to a session fails, as a code that stays and words for people.

import { ApiError, NetworkError } from "../khala/requests.ts";
import type { SessionProblem } from "../workers/session.messages.ts";

export class Failed extends Error {
  readonly code: string;

  constructor(code: string, message: string) {
    super(message);
    this.name = "Failed";
    this.code = code;
  }
}

/** A server's codes stay what they are; `unreachable` where it did not answer, `internal` for what nobody expected. */
export function problemOf(error: unknown): SessionProblem {
  if (error instanceof Failed || error instanceof ApiError) return { code: error.code, message: error.message };
  if (error instanceof NetworkError) return { code: "unreachable", message: error.message };
  return { code: "internal", message: error instanceof Error ? error.message : String(error) };
}
