// Errors of session requests: a stable code and a message for people.

import { ApiError, NetworkError } from "@khala/client";
import type { SessionProblem } from "../workers/session.messages.ts";

export class SessionError extends Error {
  readonly code: string;
  readonly retryAfterSeconds: number | undefined;

  constructor(code: string, message: string, retryAfterSeconds?: number) {
    super(message);
    this.retryAfterSeconds = retryAfterSeconds;
    this.name = "Failed";
    this.code = code;
  }
}

/** The problem of an error: the server's own code, `unreachable` without an answer, `internal` for anything unexpected. */
export function problemOf(error: unknown): SessionProblem {
  if (error instanceof SessionError) return { code: error.code, message: error.message, ...(error.retryAfterSeconds !== undefined && { retryAfterSeconds: error.retryAfterSeconds }) };
  if (error instanceof ApiError) return { code: error.code, message: error.message };
  if (error instanceof NetworkError) return { code: "unreachable", message: error.message };
  return { code: "internal", message: error instanceof Error ? error.message : String(error) };
}
