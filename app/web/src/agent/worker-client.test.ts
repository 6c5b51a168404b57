import { IDBFactory } from "fake-indexeddb";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";

import type { AgentBroadcast, AgentReply, AgentRequest } from "../workers/agent.messages.ts";
import { AgentService, handleRequest, type AgentEnvironment } from "./agent-service.ts";
import { createPlainEngine } from "./engines/plain.ts";
import { AgentWorkerClient, MAX_PENDING_REQUESTS, REQUEST_TIMEOUT_MS, type AgentPort } from "./worker-client.ts";

/** A worker that answers with what `answer` says, and can crash. */
class FakeWorker implements AgentPort {
  onmessage: AgentPort["onmessage"] = null;
  onmessageerror: AgentPort["onmessageerror"] = null;
  onerror: AgentPort["onerror"] = null;
  terminated = false;
  readonly #answer: (request: AgentRequest) => Promise<AgentReply> | null;

  constructor(answer: (request: AgentRequest) => Promise<AgentReply> | null) {
    this.#answer = answer;
  }

  postMessage(request: AgentRequest): void {
    void this.#answer(structuredClone(request))?.then((data) => this.onmessage?.({ data: structuredClone(data) } as MessageEvent<AgentReply>));
  }

  terminate(): void {
    this.terminated = true;
  }

  crash(): void {
    this.onerror?.({ message: "out of memory" } as ErrorEvent);
  }
}

const surroundings = (changes: Partial<AgentEnvironment> = {}): AgentEnvironment => ({
  engine: () => Promise.resolve({ engine: createPlainEngine(), failures: [] }),
  indexedDB: new IDBFactory(),
  fetch: () => Promise.resolve(new Response(JSON.stringify({ default: "a:b", items: [{ model: "a:b", inputUsdPerMillion: "1", outputUsdPerMillion: "1" }] }))),
  clock: () => 0,
  broadcast: () => undefined,
  ...changes,
});

/** A page and the agent's worker, without a thread between them. */
function linkTo(changes: Partial<AgentEnvironment> = {}): AgentWorkerClient {
  return new AgentWorkerClient(() => {
    const agent = AgentService.start(surroundings(changes));
    return new FakeWorker((request) => handleRequest(agent, request));
  });
}

const TITLED = { id: "t", title: "A title", revision: 1 };
const EXTENT = { ids: ["m"], isWhole: true };
const RUN = { agent: null, model: "a:b", tools: [], steps: 3, ms: 5_000, inputTokens: 1_000_000, outputTokens: 500_000, at: 1 };

describe("the page and its agent", () => {
  test("answers everything that can be asked", async () => {
    const link = linkTo();
    expect(await link.request("ready", {})).toEqual({ engine: "plain", persistent: true, messages: 0, runs: 0, failures: [] });
    expect(await link.request("index", { thread: TITLED, messages: [{ id: "m", text: "some words", at: 1 }], extent: EXTENT })).toBe(2);
    expect(await link.request("revision", { threadId: "t" })).toBe(1);
    expect(await link.request("search", { query: "words", k: 3 })).toMatchObject([{ messageId: "m", title: "A title" }]);
    expect(await link.request("estimate", { task: "say hello", model: null })).toMatchObject({ basis: "rough", costUsd: expect.any(String) as string });
    for (const id of ["1", "2", "3"]) expect(await link.request("remember", { text: "say hello", run: { id, ...RUN } })).toBeNull();
    expect(await link.request("estimate", { task: "say hello", model: "a:b" })).toEqual({ steps: 3, seconds: 5, tokens: 1_500_000, costUsd: "1.5", basis: "history", runs: 3 });
    expect(await link.request("estimate", { task: "say hello", model: "unknown" })).not.toHaveProperty("costUsd");
    expect(await link.request("route", { task: "x", agents: [] })).toEqual([]);
    expect(await link.request("count", { runId: "r", from: 0, text: "hello world", model: "openai:gpt-5" })).toEqual({ tokens: 2, exact: true });
    expect((await link.request("prices", {})).default).toBe("a:b");
    expect(await link.request("forget", { threadId: "t" })).toBeNull();
    expect(await link.request("search", { query: "words", k: 3 })).toEqual([]);
    expect(await link.request("ready", {})).toMatchObject({ messages: 0, runs: 3 });
    expect(await link.request("clear", {})).toBeNull();
    expect(await link.request("ready", {})).toMatchObject({ messages: 0, runs: 0 });
  });

  test("works where nothing can be kept, and no prices are to be had, and says so", async () => {
    const link = linkTo({ indexedDB: undefined, fetch: () => Promise.reject(new TypeError("offline")) });
    expect(await link.request("ready", {})).toMatchObject({ persistent: false, failures: ["store: This browser has no IndexedDB."] });
    await link.request("index", { thread: TITLED, messages: [{ id: "m", text: "some words", at: 1 }], extent: EXTENT });
    expect(await link.request("search", { query: "words", k: 3 })).toHaveLength(1);
    expect(await link.request("estimate", { task: "x", model: null })).not.toHaveProperty("costUsd");
    await expect(link.request("prices", {})).rejects.toMatchObject({ name: "AgentWorkerError", code: "refused", message: "offline" });
  });

  test("hears what other tabs do to the store that they share", async () => {
    const indexedDB = new IDBFactory();
    const told: AgentBroadcast[] = [];
    const one = await AgentService.start(surroundings({ indexedDB, broadcast: (news) => told.push(news) }));
    const other = await AgentService.start(surroundings({ indexedDB }));
    const found = async (): Promise<number> => (await other.handlers.search({ query: "words", k: 1 })).length;
    const hear = async (): Promise<void> => {
      for (const news of told.splice(0)) await other.handleBroadcast(news);
    };
    const messages = [{ id: "m", text: "some words", at: 1 }];
    await one.handlers.index({ thread: TITLED, messages, extent: EXTENT });
    await hear();
    expect(await found()).toBe(1);
    await one.handlers.index({ thread: TITLED, messages: [], extent: { ids: [], isWhole: true } });
    await hear();
    expect(await found()).toBe(0);
    await one.handlers.index({ thread: TITLED, messages, extent: EXTENT });
    await hear();
    await one.handlers.forget({ threadId: "t" });
    await hear();
    expect(await found()).toBe(0);
    await other.handlers.index({ thread: TITLED, messages, extent: EXTENT });
    await other.handlers.remember({ text: "x", run: { id: "r", ...RUN } });
    await one.handlers.clear({});
    await hear();
    expect(await found()).toBe(0);
    expect(await other.handlers.ready({})).toMatchObject({ messages: 0, runs: 0 });
  });
});

describe("a worker that", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  const workers: FakeWorker[] = [];
  const linked = (answer: (request: AgentRequest) => Promise<AgentReply> | null): AgentWorkerClient => {
    workers.length = 0;
    return new AgentWorkerClient(() => workers[workers.push(new FakeWorker(answer)) - 1] ?? expect.unreachable());
  };
  const silent = (): null => null;

  test("is not asked anything is not made", async () => {
    const link = linked((request) => Promise.resolve({ id: request.id, result: null }));
    expect(workers).toHaveLength(0);
    await link.request("clear", {});
    await link.request("clear", {});
    expect(workers).toHaveLength(1);
  });

  test("doesn't answer is waited for only so long", async () => {
    const asked = linked(silent).request("clear", {});
    const failed = expect(asked).rejects.toMatchObject({ code: "timeout" });
    await vi.advanceTimersByTimeAsync(REQUEST_TIMEOUT_MS);
    await failed;
  });

  test("answers too late does no harm", async () => {
    const late: (() => void)[] = [];
    const link = linked((request) => new Promise((resolve) => late.push(() => resolve({ id: request.id, result: null }))));
    const failed = expect(link.request("clear", {})).rejects.toMatchObject({ code: "timeout" });
    await vi.advanceTimersByTimeAsync(REQUEST_TIMEOUT_MS);
    await failed;
    late[0]?.();
    const second = link.request("revision", { threadId: "t" });
    late[1]?.();
    expect(await second).toBeNull();
  });

  test("crashes is replaced once", async () => {
    const link = linked(silent);
    for (const crash of [0, 1]) {
      const asked = link.request("clear", {});
      workers[crash]?.crash();
      await expect(asked).rejects.toMatchObject({ code: "gone" });
      expect(workers[crash]?.terminated).toBe(true);
    }
    await expect(link.request("clear", {})).rejects.toMatchObject({ code: "gone" });
    expect(workers).toHaveLength(2);
  });

  test("has too much to do is not asked more", async () => {
    const link = linked(silent);
    const waiting = Array.from({ length: MAX_PENDING_REQUESTS }, () => link.request("clear", {}).catch((error: unknown) => error));
    await expect(link.request("clear", {})).rejects.toMatchObject({ code: "refused" });
    workers[0]?.crash();
    await Promise.all(waiting);
  });
});
