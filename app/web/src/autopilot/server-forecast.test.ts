import { afterEach, expect, test, vi } from "vitest";

import type { RoutePreview } from "../khala/frames.ts";
import type { RunForecast } from "./run-forecast.ts";
import { askServer, combine } from "./server-forecast.ts";

const LOCAL: RunForecast = {
  agents: [{ id: "tester", confidence: 0.4 }],
  estimate: { steps: 2, seconds: 10, tokens: 900, costUsd: "0.01", basis: "rough", runs: 0 },
};
const PREVIEW: RoutePreview = {
  agent: "reviewer",
  confidence: 0.82,
  abstained: false,
  why: "Matching words: “review”.",
  alternatives: [{ agent: "tester", confidence: 0.1 }],
  estimate: { steps: 4, seconds: 30, usd: "0.05", of: 5 },
};

afterEach(() => vi.restoreAllMocks());

test("the server's agents, reason and similar runs replace the rough guess of the browser", () => {
  expect(combine(LOCAL, PREVIEW)).toEqual({
    agents: [{ id: "reviewer", confidence: 0.82 }, { id: "tester", confidence: 0.1 }],
    estimate: { steps: 4, seconds: 30, tokens: 900, costUsd: "0.05", basis: "history", runs: 5 },
    why: "Matching words: “review”.",
  });
});

test("an abstention names no agent but the alternatives", () => {
  expect(combine(LOCAL, { ...PREVIEW, agent: "default", abstained: true }).agents).toEqual([{ id: "tester", confidence: 0.1 }]);
});

test("similar runs of this browser come before those of the server, and nothing before a guess", () => {
  const seen: RunForecast = { ...LOCAL, estimate: { ...LOCAL.estimate, basis: "history", runs: 3 } };
  expect(combine(seen, PREVIEW).estimate).toBe(seen.estimate);
  expect(combine(LOCAL, { ...PREVIEW, estimate: { of: 0 } }).estimate).toBe(LOCAL.estimate);
});

test("without the server everything comes from the browser", async () => {
  vi.spyOn(console, "info").mockReturnValue(undefined);
  expect(await askServer(() => Promise.reject(new Error("offline")), "Review it", "t", 50)).toBeNull();
  expect(await askServer(() => new Promise(() => undefined), "Review it", "t", 5)).toBeNull();
  expect(combine(LOCAL, null)).toBe(LOCAL);
  const call = vi.fn().mockResolvedValue(PREVIEW);
  expect(await askServer(call, "Review it", "t", 50)).toBe(PREVIEW);
  expect(call).toHaveBeenCalledWith("POST", "/api/route", { text: "Review it", threadId: "t" });
});
