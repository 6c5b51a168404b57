// What the console says about a request that failed.

import { ApiError } from "@khala/client";

const SENTENCES: Readonly<Record<string, string>> = {
  rate_limited: "The server received too many requests. Wait a moment.",
  unavailable: "The server is unavailable. The console tries again by itself.",
};
const UNREACHABLE = "The console cannot reach the server. Check your connection.";

/** A sentence for a failed request: the server's own where it says more than the code. */
export function errorSentence(error: unknown): string {
  if (!(error instanceof ApiError)) return UNREACHABLE;
  const detail = error.errors.map(({ message }) => message).join(" ");
  return detail || (SENTENCES[error.code] ?? asSentence(error.message));
}

function asSentence(text: string): string {
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
