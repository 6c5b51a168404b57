import "fake-indexeddb/auto";

import { afterEach, describe, expect, test, vi } from "vitest";

import { Authenticator } from "./credentials.ts";
import { Khala } from "./khala.ts";
import type { KhalaOptions } from "./khala.ts";
import { ApiError } from "./requests.ts";
import { fakeSockets } from "./testing/fake-sockets.ts";
import { FakeThread, THREAD } from "./testing/fake-thread.ts";

const SENT = { threadId: THREAD, userMessageId: "u", assistantMessageId: "a", runId: "r", revision: 2 };
const KEY = "k".repeat(40);
const open: Khala[] = [];
afterEach(() => {
  for (const khala of open.splice(0)) khala.close();
  vi.unstubAllGlobals();
});

function client(options: KhalaOptions): Khala {
  const khala = new Khala({ server: "http://khala", ...options });
  open.push(khala);
  return khala;
}

/** Answers requests in place of a server. Returns those that were made. */
function serve(answer: (path: string, headers: Record<string, string>) => Response | Promise<Response>) {
  const asked: { path: string; headers: Record<string, string>; body: unknown }[] = [];
  vi.stubGlobal("fetch", async (url: string, { headers, body }: { headers: Record<string, string>; body?: string }) => {
    const path = url.replace("http://khala", "");
    asked.push({ path, headers, body: body === undefined ? null : JSON.parse(body) });
    return answer(path, headers);
  });
  return asked;
}

const unreachable = (): Promise<Response> => Promise.reject(new TypeError("fetch failed"));
const problem = (status: number, code: string): Response => Response.json({ title: code, status, code, detail: code }, { status });

describe("queued messages", () => {
  test("of an anonymous key outlive the page, and are sent once under the same id", async () => {
    serve(unreachable);
    const before = client({ credentials: { anonKey: KEY } });
    const id = before.thread(THREAD).queue("Hello");
    await vi.waitFor(async () => expect((await indexedDB.databases()).length).toBe(1));
    await new Promise((resolve) => setTimeout(resolve, 20));
    before.close();
    const asked = serve(() => Response.json(SENT, { status: 202 }));
    const after = client({ credentials: { anonKey: KEY } });
    await vi.waitFor(() => expect(after.queued.get()[0]?.state.phase).toBe("sent"));
    expect(asked.map(({ path, body }) => [path, body])).toEqual([[`/api/threads/${THREAD}/send`, { messageId: id, text: "Hello", attachments: [], options: { ifBusy: "queue" } }]]);
    expect(JSON.stringify(await indexedDB.databases()), "the key is in no name").not.toContain(KEY);
    const third = client({ credentials: { anonKey: KEY } });
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect([asked.length, third.queued.get()]).toEqual([1, []]);
  });

  test("of one person are not sent as another one", async () => {
    serve(unreachable);
    const ada = client({ user: "ada", credentials: { token: "ada's" } });
    ada.thread(THREAD).queue("From Ada");
    await new Promise((resolve) => setTimeout(resolve, 20));
    ada.close();
    const asked = serve(() => Response.json(SENT, { status: 202 }));
    client({ user: "bob", credentials: { token: "bob's" } });
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(asked).toEqual([]);
    client({ user: "ada", credentials: { token: "ada's" } });
    await vi.waitFor(() => expect(asked.map(({ headers }) => headers.Authorization)).toEqual(["Bearer ada's"]));
  });

  test("of a thread with credentials of its own are sent with these, and are not stored", async () => {
    const asked = serve(unreachable);
    const khala = client({ user: "eve", credentials: { token: "account" } });
    khala.thread(THREAD, { credentials: { token: "thread" } }).queue("Hello");
    await vi.waitFor(() => expect(asked.map(({ headers }) => headers.Authorization)).toEqual(["Bearer thread"]));
    khala.close();
    const later = client({ user: "eve", credentials: { token: "account" } });
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(later.queued.get()).toEqual([]);
  });
});

describe("a function for tokens", () => {
  test("is called once for requests at the same time, and once more when the server refuses its token", async () => {
    const tokens = vi.fn((refused: string | null) => Promise.resolve(refused === null ? "old" : "new"));
    const asked = serve((_, headers) => (headers.Authorization === "Bearer new" ? Response.json({ items: [] }) : problem(401, "unauthorized")));
    const khala = client({ credentials: { token: tokens } });
    await Promise.all([khala.threads.list(), khala.agents(), khala.threads.list()]);
    expect(tokens.mock.calls).toEqual([[null], ["old"]]);
    expect(asked).toHaveLength(6);
  });

  test("that has no newer token leaves the refusal as it is", async () => {
    serve(() => problem(401, "unauthorized"));
    const khala = client({ credentials: { token: () => "same" } });
    await expect(khala.agents()).rejects.toMatchObject({ status: 401, code: "unauthorized" });
    await expect(client({ credentials: { token: "fixed" } }).agents()).rejects.toMatchObject({ status: 401 });
  });

  test("that fails once is called again by the next request", async () => {
    const auth = new Authenticator({ token: vi.fn().mockRejectedValueOnce(new Error("offline")).mockReturnValue("token") });
    await expect(auth.keys()).rejects.toThrow("offline");
    expect(await auth.keys()).toEqual({ token: "token" });
  });

  test("renews the token of a subscription, which continues from its revision; a second refusal ends it", async () => {
    const thread = new FakeThread();
    const network = fakeSockets();
    const tokens = vi.fn((refused: string | null) => (refused === null ? "old" : "new"));
    const khala = client({ credentials: { token: tokens }, WebSocket: network.WebSocket });
    const views: string[] = [];
    khala.thread(THREAD).subscribe(() => views.push(khala.thread(THREAD).get().status));
    await vi.waitFor(() => expect(network.made).toHaveLength(1));
    network.last().sendHello();
    network.last().deliver(thread.snapshot());
    network.last().deliver({ type: "gone", threadId: THREAD, code: "forbidden" });
    await vi.waitFor(() => expect(network.made).toHaveLength(2));
    network.last().sendHello();
    expect(network.last().received).toMatchObject([{ type: "authenticate", token: "new" }, { type: "subscribe", after: thread.revision }]);
    network.last().deliver({ type: "error", threadId: THREAD, code: "forbidden", message: "No." });
    await vi.waitFor(() => expect(views.at(-1)).toBe("refused"));
    expect(khala.thread(THREAD).get().error).toEqual({ code: "forbidden", message: "No." });
    expect([tokens.mock.calls, network.made.length]).toEqual([[[null], ["old"]], 2]);
  });
});

test("requests that may be repeated are, and others are not", async () => {
  const failures = { "/api/models": 0, "/api/memories": 0 };
  serve((path) => {
    const count = ++failures[path as keyof typeof failures];
    return count === 1 ? problem(503, "unavailable") : Response.json({ default: "demo", items: [] });
  });
  const khala = client({});
  expect((await khala.models()).default).toBe("demo");
  await expect(khala.memories.create({ text: "Tea" })).rejects.toBeInstanceOf(ApiError);
  expect(failures).toEqual({ "/api/models": 2, "/api/memories": 1 });
});

test("a platform without WebSocket can send requests, and says what is missing when something is followed", async () => {
  vi.stubGlobal("WebSocket", undefined);
  serve(() => Response.json({ default: "demo", items: [] }));
  const khala = client({ credentials: { token: "token" } });
  expect((await khala.models()).default).toBe("demo");
  for (const followed of [khala.thread(THREAD), khala.threads]) expect(() => followed.subscribe(() => undefined)).toThrow("the option WebSocket");
});

test("an id that leads to another route is refused before anything is sent", async () => {
  const asked = serve(() => Response.json({}));
  const khala = client({ credentials: { token: "token" } });
  for (const id of ["../me", "..", "", "a/b", `${THREAD}/members/x`, `${THREAD}?x`]) {
    expect(() => khala.thread(id)).toThrow(TypeError);
    await expect(khala.plans.delete(id)).rejects.toThrow(TypeError);
  }
  await expect(khala.plans.step(THREAD, "..", "retry")).rejects.toThrow("leads elsewhere");
  await expect(khala.request("GET", "/api/threads/%2E%2e/me")).rejects.toThrow("leads elsewhere");
  expect(asked).toEqual([]);
});

test("threads that nobody observes are forgotten when there are many", () => {
  const khala = client({});
  const id = (number: number): string => `00000000-0000-7000-8000-${String(number).padStart(12, "0")}`;
  const [first] = Array.from({ length: 150 }, (_, number) => khala.thread(id(number)));
  expect(khala.thread(id(149))).toBe(khala.thread(id(149)));
  expect(khala.thread(id(0))).not.toBe(first);
});

test("the server is an address of HTTP, and has to be named outside of pages", () => {
  expect(new Khala({ server: "https://khala.example.com/base/" }).server).toBe("https://khala.example.com/base");
  expect(() => new Khala({ server: "ftp://khala" })).toThrow("http: or https:");
  expect(() => new Khala({ server: "not an address" })).toThrow(TypeError);
  expect(() => new Khala()).toThrow("Name the server");
});
