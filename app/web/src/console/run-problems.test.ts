import { expect, test } from "vitest";

import { HISTORY } from "../../gallery/fixtures/console.ts";
import { problemOf } from "./run-problems.ts";
import type { ConsoleRunHistory, RunEvent } from "./types.ts";

const NOW = Date.parse("2031-03-14T12:00:00Z");

function failedWith(...codes: readonly string[]): ConsoleRunHistory {
  const [first] = HISTORY.timeline;
  return { ...HISTORY, run: { ...HISTORY.run, state: "error" }, timeline: codes.map((code) => ({ ...first, kind: "error", code }) as RunEvent) };
}

test("a failed run says why, by its last error, and what to do", () => {
  const problem = problemOf(failedWith("timeout", "rate_limited"), NOW);
  expect(problem).toMatchObject({ tone: "bad", title: "The run failed: rate limited" });
  expect(problem?.text).toContain("Retry the run later.");
});

test.each([["a_code_of_an_agent", "The run failed: a code of an agent"], ["constructor", "The run failed: constructor"]])("an error with the unknown code %s points to the timeline", (code, title) => {
  expect(problemOf(failedWith(code), NOW)).toEqual({ tone: "bad", title, text: "The timeline shows the step that failed." });
});

test("a failed run without an event of an error has a title too", () => expect(problemOf(failedWith(), NOW)?.title).toBe("The run failed"));

test("a blocked run names the call that waits", () => expect(problemOf(HISTORY, NOW)?.title).toBe("The call of delete_file waits for approval"));

test("a running run has a problem only once its lease has expired", () => {
  const running = { ...HISTORY, run: { ...HISTORY.run, state: "running", leaseExpiresAt: "2031-03-14T12:00:00Z" } } as const;
  expect(problemOf(running, NOW - 1)).toBeUndefined();
  expect(problemOf(running, NOW + 1)?.title).toBe("The lease has expired");
});
