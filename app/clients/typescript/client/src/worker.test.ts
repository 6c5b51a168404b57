import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { AgentError, type AgentFunction, Worker } from "./worker.ts";

/** The part of Node's `process` that is used here. Its types are not available beside those of the browser. */
declare const process: { exitCode: number | undefined };

interface Request {
  path: string;
  body: Record<string, unknown>;
}

/** A server with one run, which keeps what the worker sends. `refuse` answers a request with a status and a code. */
class FakeServer {
  requests: Request[] = [];
  parts: { kind: string; data: Record<string, unknown> }[] = [];
  finish: Record<string, unknown> | undefined;
  refuse: (request: Request) => { status: number; code: string } | undefined = () => undefined;
  #claimed = false;

  constructor(
    readonly written = "",
    readonly content: unknown[] = written ? [{ type: "text", text: written }] : [],
  ) {
    this.parts = written ? [{ kind: "text-delta", data: { text: written } }] : [];
  }

  get text(): string {
    return this.parts.map((part) => (part.kind === "text-delta" ? String(part.data.text) : "")).join("");
  }

  readonly fetch = async (url: RequestInfo | URL, init?: RequestInit): Promise<Response> => {
    const path = (url as string).split("/api/executor/")[1] ?? "";
    const request = { path, body: JSON.parse(init?.body as string) as Record<string, unknown> };
    this.requests.push(request);
    const refused = this.refuse(request);
    if (refused) return Response.json({ code: refused.code, detail: refused.code }, { status: refused.status });
    if (path === "claim") return this.#claim(init?.signal ?? undefined);
    if (path === "heartbeat") return Response.json({ leaseSeconds: 10, runs: [] });
    if (path.endsWith("/finish")) this.finish = request.body;
    if (path.endsWith("/approvals")) this.parts.push({ kind: "tool-status", data: request.body });
    if (path.endsWith("/parts")) {
      const { seq, parts } = request.body as { seq: number; parts: FakeServer["parts"] };
      expect(seq).toBeLessThanOrEqual(this.parts.length);
      this.parts.splice(seq, this.parts.length, ...parts);
    }
    return Response.json({ nextSeq: this.parts.length, nextReceipt: 0, status: "final" });
  };

  async #claim(signal?: AbortSignal): Promise<Response> {
    if (this.#claimed) {
      await new Promise((_, reject) => signal?.addEventListener("abort", () => reject(new Error("aborted"))));
    }
    this.#claimed = true;
    const run = {
      runId: "run", threadId: "thread", agent: { name: "poet", version: 1 }, options: {}, epoch: 1, leaseSeconds: 10,
      messages: [{ id: "message", role: "user", content: [{ type: "text", text: "Aiur" }] }],
      nextSeq: this.parts.length, content: this.content, approvals: [], takenOver: this.written !== "",
      cancelled: false,
    };
    return Response.json({ runs: [run] });
  }
}

async function answered(server: FakeServer, agent: AgentFunction): Promise<FakeServer> {
  const worker = new Worker({ server: "http://khala/", token: "secret", fetch: server.fetch, flushMs: 1 });
  worker.agent("poet", agent);
  const running = worker.run();
  await vi.waitFor(() => expect(server.finish).toBeDefined(), { timeout: 5000 });
  worker.stop();
  await running;
  return server;
}

beforeEach(() => {
  for (const level of ["error", "warn"] as const) vi.spyOn(console, level).mockImplementation(() => undefined);
});
afterEach(() => vi.restoreAllMocks());

test("text of any length is stored in order and in parts that fit", async () => {
  const long = '"\u{1f30c}\u0001'.repeat(3000);
  const server = await answered(new FakeServer(), async (run) => {
    await run.text(`To ${run.prompt}: `);
    await run.text(long);
  });
  expect(server.text).toBe(`To Aiur: ${long}`);
  for (const part of server.parts) expect(JSON.stringify(part.data).length).toBeLessThan(4096);
  expect(server.finish).toMatchObject({ status: "completed", seq: server.parts.length });
});

test("a request that fails for now is repeated as it was", async () => {
  const server = new FakeServer();
  let failures = 2;
  server.refuse = ({ path }) =>
    path.endsWith("/parts") && failures-- > 0 ? { status: 503, code: "unavailable" } : undefined;
  await answered(server, (run) => run.text("once"));
  expect(server.text).toBe("once");
  const appends = server.requests.filter(({ path }) => path.endsWith("/parts"));
  expect(new Set(appends.map(({ body }) => JSON.stringify(body))).size).toBe(1);
});

test("a function that is run again writes only what is not stored, and its steps return stored results", async () => {
  const step = { type: "tool", toolCallId: "look-1", tool: "look", state: "completed", output: "stored" };
  const server = new FakeServer("One, ", [{ type: "text", text: "One, " }, step]);
  const look = vi.fn(() => "new");
  await answered(server, async (run) => {
    await run.text("One, ");
    await run.text(`two, ${await run.step("look", look)}.`);
  });
  expect(server.text).toBe("One, two, stored.");
  expect(look).not.toHaveBeenCalled();
});

test("another text after a take-over ends the run with an error", async () => {
  const server = await answered(new FakeServer("Heads"), (run) => run.text("Tails"));
  expect(server.finish).toMatchObject({ status: "failed", error: { code: "replay_diverged" } });
});

test("people see the message of an AgentError, and of no other error", async () => {
  const told = await answered(new FakeServer(), async () => {
    throw new AgentError("Out of stock.", "stock");
  });
  expect(told.finish).toMatchObject({ error: { code: "stock", message: "Out of stock." } });
  const hidden = await answered(new FakeServer(), async () => {
    throw new Error("password");
  });
  expect(JSON.stringify(hidden.finish)).not.toContain("password");
});

test("a run is given back once no other step runs, until any of its calls is decided", async () => {
  const server = new FakeServer();
  const worker = new Worker({ server: "http://khala", token: "secret", fetch: server.fetch, flushMs: 1, holdMs: 1 });
  let end: (result: string) => void = () => undefined;
  const slow = new Promise<string>((resolve) => (end = resolve));
  worker.agent("poet", async (run) => {
    await Promise.all([run.step("slow", () => slow), run.approve("left", {}), run.approve("right", {})]);
  });
  const running = worker.run();
  const sent = (action: string): Request[] => server.requests.filter(({ path }) => path.endsWith(action));
  await vi.waitFor(() => expect(sent("/approvals")).toHaveLength(2));
  await new Promise((resolve) => setTimeout(resolve, 20));
  expect(sent("/release")).toHaveLength(0);
  end("done");
  await vi.waitFor(() => expect(sent("/release")).toHaveLength(1));
  expect(sent("/release")[0]?.body.awaits).toEqual(["left-1", "right-1"]);
  expect(server.parts.filter(({ kind }) => kind === "tool-result")).toHaveLength(1);
  worker.stop();
  await running;
});

test("a worker that has lost a run sends nothing more about it", async () => {
  const server = new FakeServer();
  server.refuse = ({ path }) => (path.endsWith("/parts") ? { status: 409, code: "stale_epoch" } : undefined);
  const worker = new Worker({ server: "http://khala", token: "secret", fetch: server.fetch, flushMs: 1 });
  worker.agent("poet", async (run) => {
    await run.text("lost");
    await run.flush();
  });
  const running = worker.run();
  await vi.waitFor(() => expect(server.requests.some(({ path }) => path.endsWith("/parts"))).toBe(true));
  worker.stop();
  await running;
  expect(server.finish).toBeUndefined();
  expect(server.requests.filter(({ path }) => path.startsWith("runs/"))).toHaveLength(1);
});

test("a worker whose token is a placeholder, or is refused, ends with one line and status 1", async () => {
  const server = new FakeServer();
  server.refuse = () => ({ status: 401, code: "unauthorized" });
  const lines: string[] = [];
  try {
    for (const token of ["khala_…", "secret"]) {
      const worker = new Worker({ server: "http://khala/", token, fetch: server.fetch, log: (line) => lines.push(line) });
      worker.agent("poet", (run) => run.text("Aiur"));
      await worker.serve();
      expect(process.exitCode).toBe(1);
      process.exitCode = undefined;
    }
  } finally {
    process.exitCode = undefined;
  }
  expect(lines).toEqual([
    'The worker cannot start. A token consists of printable ASCII characters without spaces, but this one contains "…". Replace the placeholder of the example.',
    "The worker stops: http://khala refuses it. unauthorized",
  ]);
  expect(server.requests).toHaveLength(1);
});

test("a worker says why it has no connection, and that it has one, each once", async () => {
  const server = new FakeServer();
  const lines: string[] = [];
  let failures = 2;
  const fetch = (url: RequestInfo | URL, init?: RequestInit): Promise<Response> => {
    const refused = new Error("connect ECONNREFUSED 127.0.0.1:9");
    return failures-- > 0 ? Promise.reject(new TypeError("fetch failed", { cause: refused })) : server.fetch(url, init);
  };
  const worker = new Worker({ server: "http://khala/", token: "secret", fetch, log: (line) => lines.push(line) });
  worker.agent("poet", (run) => run.text("Aiur"));
  const running = worker.run();
  await vi.waitFor(() => expect(server.finish).toBeDefined(), { timeout: 8000 });
  worker.stop();
  await running;
  const reason = "There was no answer: TypeError: fetch failed (connect ECONNREFUSED 127.0.0.1:9)";
  expect(lines).toEqual([
    `No connection to http://khala: ${reason} Next try in 0.5 s.`,
    "Connected to http://khala, for the agents: poet",
  ]);
  const waits = server.requests.filter(({ path }) => path === "claim").map(({ body }) => body.waitSeconds);
  expect(waits.slice(0, 2)).toEqual([1, 20]);
}, 10_000);
