import { IDBFactory } from "fake-indexeddb";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";

import type { AgentBroadcast, AgentReply, AgentRequest } from "../workers/agent.messages.ts";
import { Agent, type Surroundings } from "./agent.ts";
import { replyTo } from "./answering.ts";
import { plain } from "./engines/plain.ts";
import { AgentLink, MOST_WAITING, PATIENCE_MS, type Port } from "./link.ts";

/** A worker that answers with what `answer` says, and can crash. */
class FakeWorker implements Port {
  onmessage: Port["onmessage"] = null;
  onmessageerror: Port["onmessageerror"] = null;
  onerror: Port["onerror"] = null;
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

const surroundings = (changes: Partial<Surroundings> = {}): Surroundings => ({
  engine: () => Promise.resolve({ engine: plain(), failures: [] }),
  indexedDB: new IDBFactory(),
  fetch: () => Promise.resolve(new Response(JSON.stringify({ default: "a:b", items: [{ model: "a:b", inputUsdPerMillion: "1", outputUsdPerMillion: "1" }] }))),
  clock: () => 0,
  tell: () => undefined,
  ...changes,
});

/** A page and the agent's worker, without a thread between them. */
function linkTo(changes: Partial<Surroundings> = {}): AgentLink {
  return new AgentLink(() => {
    const agent = Agent.start(surroundings(changes));
    return new FakeWorker((request) => replyTo(agent, request));
  });
}

const TITLED = { id: "t", title: "A title", revision: 1 };
const EXTENT = { ids: ["m"], isWhole: true };
const RUN = { agent: null, model: "a:b", tools: [], steps: 3, ms: 5_000, inputTokens: 1_000_000, outputTokens: 500_000, at: 1 };

describe("the page and its agent", () => {
  test("answers everything that can be asked", async () => {
    const link = linkTo();
    expect(await link.ask("ready", {})).toEqual({ engine: "plain", persistent: true, messages: 0, runs: 0, failures: [] });
    expect(await link.ask("index", { thread: TITLED, messages: [{ id: "m", text: "some words", at: 1 }], extent: EXTENT })).toBe(2);
    expect(await link.ask("revision", { threadId: "t" })).toBe(1);
    expect(await link.ask("search", { query: "words", k: 3 })).toMatchObject([{ messageId: "m", title: "A title" }]);
    expect(await link.ask("estimate", { task: "say hello", model: null })).toMatchObject({ basis: "rough", costUsd: expect.any(String) as string });
    for (const id of ["1", "2", "3"]) expect(await link.ask("remember", { text: "say hello", run: { id, ...RUN } })).toBeNull();
    expect(await link.ask("estimate", { task: "say hello", model: "a:b" })).toEqual({ steps: 3, seconds: 5, tokens: 1_500_000, costUsd: "1.5", basis: "history", runs: 3 });
    expect(await link.ask("estimate", { task: "say hello", model: "unknown" })).not.toHaveProperty("costUsd");
    expect(await link.ask("route", { task: "x", agents: [] })).toEqual([]);
    expect(await link.ask("count", { runId: "r", from: 0, text: "hello world", model: "openai:gpt-5" })).toEqual({ tokens: 2, exact: true });
    expect((await link.ask("prices", {})).default).toBe("a:b");
    expect(await link.ask("forget", { threadId: "t" })).toBeNull();
    expect(await link.ask("search", { query: "words", k: 3 })).toEqual([]);
    expect(await link.ask("ready", {})).toMatchObject({ messages: 0, runs: 3 });
    expect(await link.ask("clear", {})).toBeNull();
    expect(await link.ask("ready", {})).toMatchObject({ messages: 0, runs: 0 });
  });

  test("works where nothing can be kept, and no prices are to be had, and says so", async () => {
    const link = linkTo({ indexedDB: undefined, fetch: () => Promise.reject(new TypeError("offline")) });
    expect(await link.ask("ready", {})).toMatchObject({ persistent: false, failures: ["store: This browser has no IndexedDB."] });
    await link.ask("index", { thread: TITLED, messages: [{ id: "m", text: "some words", at: 1 }], extent: EXTENT });
    expect(await link.ask("search", { query: "words", k: 3 })).toHaveLength(1);
    expect(await link.ask("estimate", { task: "x", model: null })).not.toHaveProperty("costUsd");
    await expect(link.ask("prices", {})).rejects.toMatchObject({ name: "AgentError", code: "refused", message: "offline" });
  });

  test("hears what other tabs do to the store that they share", async () => {
    const indexedDB = new IDBFactory();
    const told: AgentBroadcast[] = [];
    const one = await Agent.start(surroundings({ indexedDB, tell: (news) => told.push(news) }));
    const other = await Agent.start(surroundings({ indexedDB }));
    const found = async (): Promise<number> => (await other.answers.search({ query: "words", k: 1 })).length;
    const hear = async (): Promise<void> => {
      for (const news of told.splice(0)) await other.hear(news);
    };
    const messages = [{ id: "m", text: "some words", at: 1 }];
    await one.answers.index({ thread: TITLED, messages, extent: EXTENT });
    await hear();
    expect(await found()).toBe(1);
    await one.answers.index({ thread: TITLED, messages: [], extent: { ids: [], isWhole: true } });
    await hear();
    expect(await found()).toBe(0);
    await one.answers.index({ thread: TITLED, messages, extent: EXTENT });
    await hear();
    await one.answers.forget({ threadId: "t" });
    await hear();
    expect(await found()).toBe(0);
    await other.answers.index({ thread: TITLED, messages, extent: EXTENT });
    await other.answers.remember({ text: "x", run: { id: "r", ...RUN } });
    await one.answers.clear({});
    await hear();
    expect(await found()).toBe(0);
    expect(await other.answers.ready({})).toMatchObject({ messages: 0, runs: 0 });
  });
});

describe("a worker that", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  const workers: FakeWorker[] = [];
  const linked = (answer: (request: AgentRequest) => Promise<AgentReply> | null): AgentLink => {
    workers.length = 0;
    return new AgentLink(() => workers[workers.push(new FakeWorker(answer)) - 1] ?? expect.unreachable());
  };
  const silent = (): null => null;

  test("is not asked anything is not made", async () => {
    const link = linked((request) => Promise.resolve({ id: request.id, answer: null }));
    expect(workers).toHaveLength(0);
    await link.ask("clear", {});
    await link.ask("clear", {});
    expect(workers).toHaveLength(1);
  });

  test("doesn't answer is waited for only so long", async () => {
    const asked = linked(silent).ask("clear", {});
    const failed = expect(asked).rejects.toMatchObject({ code: "timeout" });
    await vi.advanceTimersByTimeAsync(PATIENCE_MS);
    await failed;
  });

  test("answers too late does no harm", async () => {
    const late: (() => void)[] = [];
    const link = linked((request) => new Promise((resolve) => late.push(() => resolve({ id: request.id, answer: null }))));
    const failed = expect(link.ask("clear", {})).rejects.toMatchObject({ code: "timeout" });
    await vi.advanceTimersByTimeAsync(PATIENCE_MS);
    await failed;
    late[0]?.();
    const second = link.ask("revision", { threadId: "t" });
    late[1]?.();
    expect(await second).toBeNull();
  });

  test("crashes is replaced once", async () => {
    const link = linked(silent);
    for (const crash of [0, 1]) {
      const asked = link.ask("clear", {});
      workers[crash]?.crash();
      await expect(asked).rejects.toMatchObject({ code: "gone" });
      expect(workers[crash]?.terminated).toBe(true);
    }
    await expect(link.ask("clear", {})).rejects.toMatchObject({ code: "gone" });
    expect(workers).toHaveLength(2);
  });

  test("has too much to do is not asked more", async () => {
    const link = linked(silent);
    const waiting = Array.from({ length: MOST_WAITING }, () => link.ask("clear", {}).catch((error: unknown) => error));
    await expect(link.ask("clear", {})).rejects.toMatchObject({ code: "refused" });
    workers[0]?.crash();
    await Promise.all(waiting);
  });
});
