// Loads a repository by its address: the server downloads it into the workspace, and tells how far it is.

import { ApiError, NetworkError, withRetry } from "@khala/client";
import type { LoadedRepository, NewRepository, RepositoryFailed, RepositoryLoaded, RepositoryProgress } from "@khala/client";
import type { Server } from "./server.ts";
import { SessionError } from "./session-error.ts";

const PATH = "/api/workspace/repositories";
/** A load that is repeated replaces its folder by the same files. */
const MAX_ATTEMPTS = 3;

type Ended = RepositoryLoaded | RepositoryFailed;

/** Throws SessionError with the server's code, such as `not_found`, `private` or `rate_limited`; nothing is stored then. */
export async function loadAddress(server: Pick<Server, "events">, asked: NewRepository, report: (progress: RepositoryProgress) => void): Promise<LoadedRepository> {
  try {
    const end = await withRetry(() => loadOnce(server, asked, report), { maxAttempts: MAX_ATTEMPTS });
    if (end.type === "loaded") return end.repository;
    throw new SessionError(end.code, end.message, end.retryAfterSeconds);
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) throw new SessionError(error.code, "Loading a repository by its address needs an account. Sign in, or send `files` instead.");
    throw error;
  }
}

async function loadOnce(server: Pick<Server, "events">, asked: NewRepository, report: (progress: RepositoryProgress) => void): Promise<Ended> {
  const ends: Ended[] = [];
  await server.events(PATH, asked, (event) => {
    const { type } = event as { type: string };
    if (type === "progress") report(event as RepositoryProgress);
    else if (type === "loaded" || type === "failed") ends.push(event as Ended);
  });
  const [end] = ends;
  if (!end) throw new NetworkError("The answer was cut off.");
  return end;
}
