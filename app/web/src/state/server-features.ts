// What the server allows, as `GET /api/auth` says.

import { isRequestError, request, withRetry } from "@khala/client";
import type { SignInMethods } from "@khala/client";

export type ServerFeatures = {
  /** Whether chats may be open to everybody. */
  publicThreads: boolean;
  /** For how many seconds a deletion can be undone; 0 if it cannot. */
  undoSeconds: number;
};

const UNKNOWN: ServerFeatures = { publicThreads: false, undoSeconds: 0 };
let known: ServerFeatures | null = null;

/** What the server allows. Nothing while it cannot be reached, or if it is too old to say so. */
export async function serverFeatures(): Promise<ServerFeatures> {
  try {
    known ??= { ...UNKNOWN, ...(await withRetry(() => request<SignInMethods>("GET", "/api/auth"), { maxAttempts: 2 })) };
  } catch (error) {
    if (!isRequestError(error)) throw error;
  }
  return known ?? UNKNOWN;
}
