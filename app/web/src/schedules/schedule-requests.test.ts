import { beforeEach, expect, test, vi } from "vitest";

import { ApiError, NetworkError, type Schedule } from "@khala/client";
import { sendNow } from "./schedule-requests.ts";

const requests = vi.hoisted(() => [] as [method: string, path: string, body: unknown][]);
/** What the request to send fails with, and the request to resume. */
const failures = vi.hoisted(() => ({ run: null as Error | null, resume: null as Error | null }));

vi.mock(import("@khala/client"), async (original) => ({
  ...(await original()),
  withRetry: (ask) => ask(),
  request: (method: string, path: string, options?: { body?: unknown }) => {
    const body = options?.body;
    requests.push([method, path.replace("/api/schedules/s", ""), body]);
    const failure = method === "POST" ? failures.run : JSON.stringify(body) === '{"paused":false}' ? failures.resume : null;
    return failure === null ? Promise.resolve({ status: "active" } as never) : Promise.reject(failure);
  },
}));

const PAUSE = ["PATCH", "", { paused: true }];
const RUN = ["POST", "/run", { messageId: "s" }];
const RESUME = ["PATCH", "", { paused: false }];
const FULL = new ApiError(409, { code: "run_active" });
const LATER = new Date(Date.now() + 60_000).toISOString();

function schedule(fields: Partial<Schedule>): Schedule {
  return { id: "s", text: "Hi", timeZone: "UTC", missed: "once", status: "active", at: LATER, nextAt: LATER, createdAt: LATER, updatedAt: LATER, ...fields };
}

beforeEach(() => {
  requests.length = 0;
  Object.assign(failures, { run: null, resume: null });
});

/** Whether it stays paused; undefined if it was sent. */
async function pausedBy(sent: Schedule): Promise<boolean | undefined> {
  const onpaused = vi.fn();
  const failed = await sendNow(sent, onpaused).then(() => false, (error: unknown) => error === failures.run);
  return failed ? onpaused.mock.calls.length > 0 : undefined;
}

test("what is sent now is paused before, and deleted afterwards", async () => {
  expect(await pausedBy(schedule({}))).toBeUndefined();
  expect(requests).toEqual([PAUSE, RUN, ["DELETE", "", undefined]]);
});

test("what the server refuses to send waits for its time again", async () => {
  failures.run = FULL;
  expect(await pausedBy(schedule({}))).toBe(false);
  expect(requests).toEqual([PAUSE, RUN, RESUME]);
});

test("it stays paused if its time has passed, it can't be resumed, or it may have been sent", async () => {
  const past = "2020-01-01T00:00:00Z";
  failures.run = FULL;
  expect(await pausedBy(schedule({ at: past, nextAt: past }))).toBe(true);
  failures.resume = new NetworkError("offline");
  expect(await pausedBy(schedule({}))).toBe(true);
  requests.length = 0;
  failures.run = new NetworkError("offline");
  expect(await pausedBy(schedule({}))).toBe(true);
  expect(requests).toEqual([PAUSE, RUN]);
});

test("what had been paused before stays so, and nobody needs to be told", async () => {
  failures.run = FULL;
  expect(await pausedBy(schedule({ status: "paused" }))).toBe(false);
  expect(requests).toEqual([RUN]);
});
