import { expect, test } from "vitest";

import { ApiError } from "@khala/client";
import type { RepositoryProgress } from "@khala/client";
import { loadAddress } from "./repository-address.ts";
import { problemOf } from "./session-error.ts";

const ASKED = { url: "https://github.com/a/b" };
const REPOSITORY = { folder: "repositories/a/b", source: ASKED.url, files: 1, bytes: 2 };

/** A server whose answers are these, in order: their events, or an error. */
function answering(...answers: (unknown[] | ApiError)[]) {
  const asked: unknown[] = [];
  const events = (path: string, body: unknown, onEvent: (event: unknown) => void): Promise<void> => {
    asked.push([path, body]);
    const next = answers.shift() ?? [];
    if (next instanceof ApiError) return Promise.reject(next);
    next.forEach(onEvent);
    return Promise.resolve();
  };
  return { asked, events };
}

async function problem(...answers: (unknown[] | ApiError)[]) {
  return loadAddress(answering(...answers), ASKED, () => undefined).then(() => null, problemOf);
}

test.each([
  ["not_found", "github.com has no repository a/b, or it is private.", undefined],
  ["private", "The repository a/b on github.com is private or requires a login.", undefined],
  ["rate_limited", "github.com limits the rate of requests. Try again in 77 seconds.", 77],
  ["too_large", "The archive is larger than 100 MiB.", undefined],
])("a failure is told as the server does: %s", async (code, message, retryAfterSeconds) => {
  const error = { code, message, ...(retryAfterSeconds && { retryAfterSeconds }) };
  expect(await problem([{ type: "progress", stage: "downloading" }, { type: "failed", ...error }])).toEqual(error);
});

test("an address needs an account, and other refusals are passed on", async () => {
  expect(await problem(new ApiError(401, { code: "unauthorized", detail: "Authentication is required." }))).toEqual({
    code: "unauthorized",
    message: "Loading a repository by its address needs an account. Sign in, or send `files` instead.",
  });
  expect(await problem(new ApiError(403, { code: "forbidden", detail: "No." }))).toEqual({ code: "forbidden", message: "No." });
});

test("an answer that was cut off is asked for again, and events of unknown types are ignored", async () => {
  const server = answering([{ type: "progress", stage: "downloading" }], [{ type: "new" }, { type: "loaded", repository: REPOSITORY }]);
  const reported: RepositoryProgress[] = [];
  expect(await loadAddress(server, ASKED, (progress) => reported.push(progress))).toEqual(REPOSITORY);
  expect(reported).toEqual([{ type: "progress", stage: "downloading" }]);
  expect(server.asked).toEqual(Array(2).fill(["/api/workspace/repositories", ASKED]));
});
