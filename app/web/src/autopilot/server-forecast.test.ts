import { afterEach, expect, test, vi } from "vitest";

import type { RoutePreview } from "@khala/client";
import type { RunForecast } from "./run-forecast.ts";
import { askServer, combine } from "./server-forecast.ts";

const LOCAL: RunForecast = {
  agents: [{ id: "tester", confidence: 0.4 }, { id: "writer", confidence: 0.2 }],
  suggested: null,
  estimate: { steps: 2, seconds: 10, tokens: 900, costUsd: "0.01", basis: "rough", runs: 0 },
};
const PREVIEW: RoutePreview = {
  agent: "reviewer",
  confidence: 0.82,
  abstained: false,
  why: "Matching words: “review”.",
  by: "words",
  alternatives: [{ agent: "tester", confidence: 0.1 }],
  estimate: { steps: 4, seconds: 30, usd: "0.05", of: 5 },
};

afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

function serverThat(answers: (init: RequestInit) => Promise<Response>): void {
  vi.stubGlobal("fetch", (_: string, init: RequestInit) => answers(init));
}

const ask = (timeoutMs = 1_000): ReturnType<typeof askServer> => askServer({ text: "Review it", threadId: "t" }, { anonKey: "key" }, timeoutMs);

test("the server's agents, reason and similar runs replace the rough guess of the browser", () => {
  expect(combine(LOCAL, PREVIEW)).toEqual({
    agents: [{ id: "reviewer", confidence: 0.82 }, { id: "tester", confidence: 0.1 }, { id: "writer" }],
    suggested: "reviewer",
    estimate: { steps: 4, seconds: 30, tokens: 900, costUsd: "0.05", basis: "history", runs: 5 },
    why: "Matching words: “review”.",
  });
});

test("an abstention names no agent but the alternatives", () => {
  const { agents, suggested } = combine(LOCAL, { ...PREVIEW, agent: "default", abstained: true });
  expect({ agents, suggested }).toEqual({ agents: [{ id: "tester", confidence: 0.1 }, { id: "writer" }], suggested: null });
});

test("similar runs of this browser come before those of the server, and nothing before a guess", () => {
  const seen: RunForecast = { ...LOCAL, estimate: { ...LOCAL.estimate, basis: "history", runs: 3 } };
  expect(combine(seen, PREVIEW).estimate).toBe(seen.estimate);
  expect(combine(LOCAL, { ...PREVIEW, estimate: { of: 0 } }).estimate).toBe(LOCAL.estimate);
});

test("the server is asked with the keys of the chat", async () => {
  const asked = vi.fn().mockResolvedValue(Response.json(PREVIEW));
  serverThat(asked);
  expect(await ask()).toEqual(PREVIEW);
  expect(asked.mock.lastCall?.[0]).toMatchObject({ method: "POST", body: '{"text":"Review it","threadId":"t"}', headers: { "X-Anon-Key": "key" } });
});

test("without the server everything comes from the browser", async () => {
  vi.spyOn(console, "info").mockReturnValue(undefined);
  serverThat(() => Promise.reject(new TypeError("offline")));
  expect(await ask()).toBeNull();
  serverThat(() => Promise.resolve(Response.json({ code: "thread_not_found" }, { status: 404 })));
  expect(await ask()).toBeNull();
  serverThat(({ signal }) => new Promise((_, reject) => signal?.addEventListener("abort", () => reject(signal.reason as Error))));
  expect(await ask(5)).toBeNull();
  expect(combine(LOCAL, null)).toBe(LOCAL);
});
