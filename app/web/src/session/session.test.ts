import { describe, expect, test } from "vitest";

import { ApiError, EMPTY_THREAD } from "@khala/client";
import type { AccessKeys, Block, Finish, MessageState } from "@khala/client";
import type { FromSession } from "../workers/session.messages.ts";
import { componentsOf } from "./components.ts";
import { bundleFiles, MAX_FILE_BYTES, MAX_FILES } from "./repository.ts";
import type { Listener, Server } from "./server.ts";
import { PREVIEW_TOOL, RunSession, type SessionOptions } from "./session.ts";

const THREAD = "11111111-1111-4111-8111-111111111111";
const SENT = { threadId: THREAD, userMessageId: "question", assistantMessageId: "answer", runId: "run", revision: 2 };
const USAGE = { inputTokens: 10, outputTokens: 4 };

type Asked = { method: string; path: string; body: unknown };

/** A server in memory: it answers by `routes`, and the test says what the thread has come to. */
class Khala implements Server {
  asked: Asked[] = [];
  uploads: string[] = [];
  keys: AccessKeys = {};
  origin = "";
  listener: Listener | null = null;
  routes: Record<string, (body: unknown) => unknown> = {
    "POST /api/threads": () => ({ thread: { id: THREAD } }),
    [`GET /api/threads/${THREAD}`]: () => ({ thread: { id: THREAD } }),
    "GET /api/tools": () => ({ items: [{ name: "glob" }, { name: "grep" }, { name: "mine" }] }),
    [`POST /api/threads/${THREAD}/send`]: () => SENT,
    "GET /api/runs/run/approvals": () => ({ items: [{ toolCallId: "c1", args: { content: "whole" } }] }),
    "POST /api/runs/run/approvals/c1": (body) => ({ state: (body as { approved: boolean }).approved ? "approved" : "denied" }),
    "POST /api/runs/run/cancel": () => ({ id: "run" }),
  };

  connect = (origin: string, keys: AccessKeys): Server => Object.assign(this, { origin, keys });

  call<T>(method: string, path: string, body?: unknown): Promise<T> {
    this.asked.push({ method, path, body });
    const route = this.routes[`${method} ${path.replace(/\?.*/, "")}`];
    if (!route) return Promise.reject(new ApiError(404, { code: "not_found", detail: `There is no ${path}.` }));
    return new Promise<unknown>((resolve) => resolve(route(body))) as Promise<T>;
  }

  requestWithRetry<T>(method: string, path: string, body?: unknown): Promise<T> {
    return this.call<T>(method, path, body);
  }

  async upload(path: string, file: Blob) {
    this.uploads.push(`${path}\n${await file.text()}`);
    return { blobId: `blob${this.uploads.length}`, size: file.size, sha256: "", mediaType: file.type };
  }

  /** The events of the answers of `events`, in order. */
  streams: unknown[][] = [];

  events(path: string, body: unknown, onEvent: (event: unknown) => void): Promise<void> {
    this.asked.push({ method: "POST", path, body });
    this.streams.shift()?.forEach(onEvent);
    return Promise.resolve();
  }

  text = () => Promise.resolve('{"html":"<p>large</p>"}');
  follow = (_: string, on: Listener) => void (this.listener = on);
  close = () => void (this.listener = null);

  /** The answer is so far. */
  tell(content: Block[], finish?: Partial<Finish>, more: Partial<MessageState> = {}): void {
    const status = finish ? "final" : "streaming";
    const end = finish ? { finish: { reason: "stop" as const, usage: USAGE, ...finish } } : {};
    const message: MessageState = { id: "answer", threadId: THREAD, role: "assistant", status, runId: "run", seq: content.length, content, createdAt: "", updatedAt: "", ...end, ...more };
    this.listener?.state({ ...EMPTY_THREAD, revision: 3, messages: [message] });
  }

  bodyOf(path: string): unknown {
    return this.asked.findLast((asked) => asked.path === path)?.body;
  }
}

function begun(more: Partial<SessionOptions> = {}) {
  const khala = new Khala();
  const said: FromSession[] = [];
  const session = new RunSession((message) => said.push(message), { connect: khala.connect, origin: "https://khala.test", ...more });
  const of = <Type extends FromSession["type"]>(type: Type) => said.filter((message): message is Extract<FromSession, { type: Type }> => message.type === type);
  const response = (id: string | null) => of("response").find((message) => message.id === id);
  return { khala, said, session, of, response };
}

async function ready(more: Partial<SessionOptions> = {}) {
  const all = begun(more);
  await all.session.receive({ id: "i", type: "init", payload: {} });
  /** Begin a chat, and go on once it was taken. */
  const chat = async (payload: object, id = "c") => {
    const done = all.session.receive({ id, type: "chat", payload });
    await settled();
    return done;
  };
  return { ...all, chat: (payload: object, id?: string) => ({ done: chat(payload, id) }) };
}

/** All that is ready to happen has happened. */
const settled = () => new Promise((resolve) => setTimeout(resolve, 0));
const text = (words: string): Block => ({ type: "text", text: words });
const tool = (state: "queued" | "running" | "blocked" | "completed", more: object = {}): Block => ({ type: "tool", toolCallId: "c1", tool: "delete_file", step: 1, args: { path: "a" }, state, ...more });

describe("init", () => {
  test("says ready once, with the number of tools that there are, before its response", async () => {
    const { session, said, of, khala } = begun();
    await session.receive({ id: "i", type: "init", payload: {} });
    expect(said.map(({ type }) => type)).toEqual(["ready", "response"]);
    expect(of("ready")).toEqual([{ type: "ready", tools: 3, threadId: THREAD }]);
    expect(said[1]).toEqual({ type: "response", id: "i", success: true, data: { threadId: THREAD, anonKey: khala.keys.anonKey } });
    await session.receive({ id: "j", type: "init", payload: {} });
    expect(of("ready")).toHaveLength(1);
    expect(said.at(-1)).toMatchObject({ id: "j", success: false, error: { code: "conflict" } });
  });

  test("opens the thread that is named, with the token, at the server that is named", async () => {
    const { session, khala } = begun();
    await session.receive({ id: "i", type: "init", payload: { server: "https://other.test", token: "t", threadId: THREAD } });
    expect(khala.origin).toBe("https://other.test");
    expect(khala.keys).toEqual({ token: "t" });
    expect(khala.asked[0]).toMatchObject({ method: "GET", path: `/api/threads/${THREAD}?limit=1` });
  });

  test("that failed may be tried again", async () => {
    const { session, khala, of, response } = begun();
    const tools = khala.routes["GET /api/tools"];
    khala.routes["GET /api/tools"] = () => {
      throw new ApiError(503, { code: "unavailable" });
    };
    await session.receive({ id: "i", type: "init", payload: {} });
    expect(response("i")).toMatchObject({ success: false, error: { code: "unavailable" } });
    if (tools) khala.routes["GET /api/tools"] = tools;
    await session.receive({ id: "j", type: "init", payload: {} });
    expect(response("j")).toMatchObject({ success: true });
    expect(of("ready")).toHaveLength(1);
  });
});

describe("what can't be understood", () => {
  test.each([
    ["no object", "hello", null, "invalid_input"],
    ["nothing", null, null, "invalid_input"],
    ["a list", [], null, "invalid_input"],
    ["no id", { type: "init" }, null, "invalid_input"],
    ["an empty id", { id: "", type: "init" }, null, "invalid_input"],
    ["a long id", { id: "x".repeat(65), type: "init" }, null, "invalid_input"],
    ["an id that is no text", { id: 7, type: "init" }, null, "invalid_input"],
    ["no type", { id: "x" }, "x", "unknown_type"],
    ["an unknown type", { id: "x", type: "dance" }, "x", "unknown_type"],
    ["a type of the prototype's", { id: "x", type: "toString" }, "x", "unknown_type"],
    ["a payload that is none", { id: "x", type: "init", payload: 3 }, "x", "invalid_input"],
    ["a bad server", { id: "x", type: "init", payload: { server: "javascript:1" } }, "x", "invalid_input"],
    ["a short key", { id: "x", type: "init", payload: { anonKey: "short" } }, "x", "invalid_input"],
    ["a bad thread", { id: "x", type: "init", payload: { threadId: "../me" } }, "x", "invalid_input"],
    ["a text that is none", { id: "x", type: "chat", payload: { text: 1 } }, "x", "invalid_input"],
    ["too long a text", { id: "x", type: "chat", payload: { text: "x".repeat(100_001) } }, "x", "invalid_input"],
    ["bad options", { id: "x", type: "chat", payload: { text: "a", options: [] } }, "x", "invalid_input"],
    ["a decision that is none", { id: "x", type: "approve_tool", payload: { toolId: "a", approved: "yes" } }, "x", "invalid_input"],
    ["files that are none", { id: "x", type: "load_repo", payload: { files: [{ path: "a" }] } }, "x", "invalid_input"],
    ["a branch that is none", { id: "x", type: "load_repo", payload: { url: "https://a", ref: 7 } }, "x", "invalid_input"],
    ["both files and address", { id: "x", type: "load_repo", payload: { files: [], url: "https://a" } }, "x", "invalid_input"],
  ])("is answered: %s", async (_, message, id, code) => {
    const { session, said } = begun();
    await session.receive(message);
    expect(said).toEqual([{ type: "response", id, success: false, error: { code, message: expect.any(String) as string } }]);
  });

  test("and so is what comes before init", async () => {
    const { session, said } = begun();
    await session.receive({ id: "x", type: "chat", payload: { text: "Hello" } });
    expect(said).toMatchObject([{ id: "x", success: false, error: { code: "not_ready" } }]);
  });
});

describe("chat", () => {
  test("tells its text once in steps, then the end with usage, then its response", async () => {
    const { khala, said, chat } = await ready();
    const { done } = chat({ text: "Hello" });
    await settled();
    said.length = 0;
    khala.tell([text("One ")]);
    khala.tell([text("One ")]);
    khala.tell([text("One two")]);
    khala.tell([text("One two")], { costUsd: "0.1" });
    await done;
    expect(said).toEqual([
      { type: "step", id: "c", done: false, text: "One " },
      { type: "step", id: "c", done: false, text: "two" },
      { type: "step", id: "c", done: true, usage: USAGE, reason: "stop", costUsd: "0.1" },
      { type: "response", id: "c", success: true, data: expect.objectContaining({ text: "One two", runId: "run", userMessageId: "question" }) as object },
    ]);
  });

  test("goes on in the thread, on autopilot unless told otherwise", async () => {
    const { khala, session } = await ready();
    khala.routes[`POST /api/threads/${THREAD}/send`] = () => (setTimeout(() => khala.tell([text("Yes.")], {})), SENT);
    await session.receive({ id: "1", type: "chat", payload: { text: "One" } });
    expect(khala.bodyOf(`/api/threads/${THREAD}/send`)).toMatchObject({ text: "One", options: { autopilot: true } });
    await session.receive({ id: "2", type: "chat", payload: { text: "Two", options: { autopilot: false, maxSteps: 3 } } });
    expect(khala.bodyOf(`/api/threads/${THREAD}/send`)).toMatchObject({ text: "Two", options: { autopilot: false, maxSteps: 3 } });
  });

  test("tells each change of a call in each of its rounds", async () => {
    const { khala, of, chat } = await ready();
    const { done } = chat({ text: "Look" });
    await settled();
    const second: Block = { type: "tool", toolCallId: "c2", tool: "grep", step: 2, state: "completed", summary: "2 lines" };
    khala.tell([tool("running")]);
    khala.tell([tool("completed", { summary: "gone" }), second]);
    khala.tell([tool("completed", { summary: "gone" }), second, text("Done.")], {});
    await done;
    const told = of("step").flatMap((step) => ("tool" in step ? [[step.tool.toolId, step.tool.step, step.tool.state]] : []));
    expect(told).toEqual([["answer/c1", 1, "running"], ["answer/c1", 1, "completed"], ["answer/c2", 2, "completed"]]);
  });

  test("has as its text just what its steps told, also where a notice parts a word", async () => {
    const { khala, of, response, chat } = await ready();
    const { done } = chat({ text: "Hello" });
    await settled();
    const notice: Block = { type: "notice", code: "resumed", message: "Here again." };
    khala.tell([text("Hel"), notice]);
    khala.tell([text("Hel"), notice, text("lo.\n```html component\n<b>"), notice, text("x</b>\n```")], {});
    await done;
    const told = of("step").flatMap((step) => ("text" in step ? [step.text] : [])).join("");
    expect(told).toBe("Hello.\n```html component\n<b>x</b>\n```");
    expect(response("c")).toMatchObject({ success: true, data: { text: told } });
    expect(of("preview_component")).toMatchObject([{ html: "<b>x</b>" }]);
    expect(of("step").filter((step) => "notice" in step)).toHaveLength(2);
  });

  test("of a run that failed has a response that says why, after the last step", async () => {
    const { khala, said, chat } = await ready();
    const { done } = chat({ text: "Hello" });
    await settled();
    khala.tell([text("Sorry.")], { reason: "error" }, { failure: { code: "overloaded", message: "Too busy." } });
    await done;
    expect(said.at(-2)).toMatchObject({ type: "step", done: true, reason: "error" });
    expect(said.at(-1)).toEqual({ type: "response", id: "c", success: false, error: { code: "overloaded", message: "Too busy." } });
  });

  test("is one at a time, and an id under way can't be used again", async () => {
    const { khala, session, of, chat } = await ready();
    const { done } = chat({ text: "Hello" });
    await settled();
    await session.receive({ id: "d", type: "chat", payload: { text: "And?" } });
    await session.receive({ id: "c", type: "cancel" });
    expect(of("response").slice(1)).toMatchObject([{ id: "d", error: { code: "run_active" } }, { id: "c", error: { code: "conflict" } }]);
    await session.receive({ id: "e", type: "cancel" });
    expect(of("response").at(-1)).toMatchObject({ id: "e", success: true, data: { runId: "run" } });
    khala.tell([], { reason: "canceled" });
    await done;
    expect(of("response").at(-1)).toMatchObject({ id: "c", success: true, data: { finish: { reason: "canceled" } } });
  });

  test("ends when the thread is reset or lost meanwhile", async () => {
    for (const lose of [(khala: Khala) => khala.listener?.state({ ...EMPTY_THREAD, revision: 9 }), (khala: Khala) => khala.listener?.refused("forbidden", "No longer yours.")]) {
      const { khala, response, chat } = await ready();
      const { done } = chat({ text: "Hello" });
      await settled();
      khala.tell([text("One")]);
      lose(khala);
      await done;
      expect(response("c")).toMatchObject({ success: false });
    }
  });

  test("that is refused says so, and the next one may be sent", async () => {
    const { khala, session, response } = await ready();
    khala.routes[`POST /api/threads/${THREAD}/send`] = () => {
      throw new ApiError(429, { code: "budget_exhausted", detail: "Enough for today." });
    };
    await session.receive({ id: "1", type: "chat", payload: { text: "One" } });
    expect(response("1")).toMatchObject({ success: false, error: { code: "budget_exhausted" } });
    khala.routes[`POST /api/threads/${THREAD}/send`] = () => (setTimeout(() => khala.tell([text("Yes.")], {})), SENT);
    await session.receive({ id: "2", type: "chat", payload: { text: "Two" } });
    expect(response("2")).toMatchObject({ success: true });
  });
});

describe("approval", () => {
  test("is asked for once, and the answer is sent with the digest that was seen", async () => {
    const { khala, session, of, response, chat } = await ready();
    const { done } = chat({ text: "Delete" });
    await settled();
    khala.tell([tool("blocked", { digest: "d1", expiresAt: "soon" })]);
    khala.tell([tool("blocked", { digest: "d1", expiresAt: "soon" })]);
    expect(of("tool_pending")).toEqual([{ type: "tool_pending", id: "c", toolId: "answer/c1", tool: "delete_file", args: { path: "a" }, digest: "d1", expiresAt: "soon" }]);
    await session.receive({ id: "a", type: "approve_tool", payload: { toolId: "answer/c1", approved: true, args: { path: "b" } } });
    expect(khala.bodyOf("/api/runs/run/approvals/c1")).toEqual({ approved: true, editedArgs: { path: "b" }, digest: "d1" });
    expect(response("a")).toMatchObject({ success: true, data: { state: "approved" } });
    await session.receive({ id: "b", type: "approve_tool", payload: { toolId: "answer/c1", approved: false } });
    expect(response("b")).toMatchObject({ success: false, error: { code: "already_decided" } });
    khala.tell([tool("completed")], {});
    await done;
  });

  test("of an unknown call is an error", async () => {
    const { session, response } = await ready();
    await session.receive({ id: "a", type: "approve_tool", payload: { toolId: "nobody", approved: true } });
    expect(response("a")).toMatchObject({ success: false, error: { code: "not_found" } });
  });

  test("that the server refuses may be tried again, but not if somebody else was first", async () => {
    for (const [status, code] of [[400, "not_found"], [409, "already_decided"]] as const) {
      const { khala, session, response, chat } = await ready();
      const { done } = chat({ text: "Delete" });
      await settled();
      khala.tell([tool("blocked")]);
      khala.routes["POST /api/runs/run/approvals/c1"] = () => {
        throw new ApiError(status, { code: status === 409 ? "already_decided" : "invalid_input" });
      };
      await session.receive({ id: "a", type: "approve_tool", payload: { toolId: "answer/c1", approved: true } });
      expect(response("a")).toMatchObject({ success: false });
      khala.tell([tool("completed")]);
      await session.receive({ id: "b", type: "approve_tool", payload: { toolId: "answer/c1", approved: true } });
      expect(response("b")).toMatchObject({ success: false, error: { code } });
      khala.tell([tool("completed")], {});
      await done;
    }
  });

  test("shows arguments whole, also those that are too large for the thread", async () => {
    const { khala, of, chat } = await ready();
    const { done } = chat({ text: "Write" });
    await settled();
    khala.tell([{ type: "tool", toolCallId: "c1", tool: "write_file", state: "blocked", argsBlob: { blobId: "x", size: 9, sha256: "", mediaType: "application/json" } }]);
    await settled();
    expect(of("tool_pending")).toMatchObject([{ args: { content: "whole" } }]);
    khala.tell([], { reason: "canceled" });
    await done;
  });
});

describe("load_repo", () => {
  test("joins files into uploads, tells how far it is, and attaches them to the next chat alone", async () => {
    const { khala, session, of, response } = await ready();
    await session.receive({ id: "l", type: "load_repo", payload: { files: [{ path: "b.ts", content: "two" }, { path: "a.ts", content: "one\n" }] } });
    expect(of("progress")).toEqual([{ type: "progress", id: "l", done: 0, total: 2 }, { type: "progress", id: "l", done: 2, total: 2 }]);
    expect(response("l")).toMatchObject({ success: true, data: { files: 2, attachments: ["blob1"] } });
    expect(khala.uploads).toEqual([`/api/threads/${THREAD}/blobs?name=repository-1.txt\n===== a.ts =====\none\n\n===== b.ts =====\ntwo\n\n`]);
    khala.routes[`POST /api/threads/${THREAD}/send`] = () => (setTimeout(() => khala.tell([text("Yes.")], {})), SENT);
    await session.receive({ id: "1", type: "chat", payload: { text: "What is it?" } });
    expect(khala.bodyOf(`/api/threads/${THREAD}/send`)).toMatchObject({ attachments: ["blob1"] });
    await session.receive({ id: "2", type: "chat", payload: { text: "And?" } });
    expect(khala.bodyOf(`/api/threads/${THREAD}/send`)).not.toHaveProperty("attachments");
  });

  test.each([
    ["too large a file", [{ path: "a", content: "x".repeat(MAX_FILE_BYTES) }], "too_large"],
    ["too many", Array.from({ length: MAX_FILES + 1 }, (_, index) => ({ path: `${index}`, content: "" })), "too_large"],
    ["too much together", Array.from({ length: 20 }, (_, index) => ({ path: `${index}`, content: "x".repeat(MAX_FILE_BYTES - 100) })), "too_large"],
    ["no text", [{ path: "a", content: "\0" }], "not_text"],
    ["half a letter", [{ path: "a", content: "\ud800" }], "not_text"],
    ["a bad path", [{ path: "a\nb", content: "" }], "invalid_input"],
    ["none", [], "invalid_input"],
  ])("refuses %s, and sends nothing", async (_, files, code) => {
    const { khala, session, response } = await ready();
    await session.receive({ id: "l", type: "load_repo", payload: { files } });
    expect(response("l")).toMatchObject({ success: false, error: { code } });
    expect(khala.uploads).toEqual([]);
  });

  test("bundles whatever it takes into ten files at most", () => {
    const files = Array.from({ length: 16 }, (_, index) => ({ path: `${index}`, content: "x".repeat(MAX_FILE_BYTES - 30 - 3000 * (index % 5)) }));
    const { bundles } = bundleFiles(files);
    expect(bundles.length).toBeLessThanOrEqual(10);
    expect(bundles.reduce((sum, one) => sum + one.files, 0)).toBe(16);
  });

  test("loads an address through the server, with its progress, and attaches nothing", async () => {
    const { khala, session, of, response, chat } = await ready();
    const repository = { folder: "repositories/a/b", source: "https://github.com/a/b", commit: "c0ffee", files: 3, bytes: 30, skipped: [{ reason: "binary", count: 1, examples: ["x.png"] }] };
    khala.streams.push([{ type: "progress", stage: "downloading", bytes: 9 }, { type: "progress", stage: "reading", files: 2 }, { type: "progress", stage: "storing", files: 3 }, { type: "loaded", repository }]);
    const payload = { url: "https://github.com/a/b", ref: "main", path: "src", into: "b" };
    await session.receive({ id: "l", type: "load_repo", payload });
    expect(khala.bodyOf("/api/workspace/repositories")).toEqual(payload);
    const progress = of("progress").map(({ stage, done, total, bytes }) => `${stage} ${done} ${total} ${bytes}`);
    expect(progress).toEqual(["downloading 0 0 9", "reading 2 0 0", "storing 3 3 0", "storing 3 3 30"]);
    expect(response("l")).toEqual({ type: "response", id: "l", success: true, data: { files: 3, bytes: 30, attachments: [], repository } });
    expect(khala.uploads).toEqual([]);
    const { done } = chat({ text: "Read it" });
    await settled();
    expect(khala.bodyOf(`/api/threads/${THREAD}/send`)).not.toHaveProperty("attachments");
    khala.tell([text("ok")], {});
    await done;
  });

  test("tells a failure of an address as the server does, with the time to wait", async () => {
    const { khala, session, response } = await ready();
    const error = { code: "rate_limited", message: "github.com limits the rate of requests. Try again in 77 seconds.", retryAfterSeconds: 77 };
    khala.streams.push([{ type: "failed", ...error }]);
    await session.receive({ id: "l", type: "load_repo", payload: { url: "https://github.com/a/b" } });
    expect(response("l")).toEqual({ type: "response", id: "l", success: false, error });
  });

  test("lets the embedder fetch the files instead", async () => {
    const { khala, session, response } = await ready({ fetchRepo: (url) => Promise.resolve([{ path: "from.txt", content: url }]) });
    await session.receive({ id: "l", type: "load_repo", payload: { url: "https://github.com/a/b" } });
    expect(response("l")).toMatchObject({ success: true, data: { files: 1, attachments: ["blob1"] } });
    expect(khala.uploads).toHaveLength(1);
  });
});

describe("components", () => {
  test("are told before the chat's end, from marked code and from calls of the tool that was offered", async () => {
    const { khala, said, chat } = await ready();
    const { done } = chat({ text: "Draw", options: { functions: [{ name: PREVIEW_TOOL }] } });
    await settled();
    const blob = { blobId: "x", size: 9, sha256: "", mediaType: "application/json" };
    const calls: Block[] = [
      { type: "tool", toolCallId: "p", tool: PREVIEW_TOOL, state: "completed", args: { html: "<i>two</i>" } },
      { type: "tool", toolCallId: "q", tool: PREVIEW_TOOL, state: "completed", argsBlob: blob },
    ];
    khala.tell([text("Look:\n```html component\n<b>one</b>\n```\n"), ...calls], { reason: "tool_calls" });
    await done;
    const shown = said.flatMap((message) => (message.type === "preview_component" ? [message.html] : []));
    expect(shown).toEqual(["<b>one</b>", "<i>two</i>", "<p>large</p>"]);
    expect(said.at(-2)).toMatchObject({ type: "step", done: true });
  });

  test("of a tool that was not offered are none", async () => {
    const { khala, of, chat } = await ready();
    const { done } = chat({ text: "Draw" });
    await settled();
    khala.tell([{ type: "tool", toolCallId: "p", tool: PREVIEW_TOOL, state: "failed", args: { html: "<i>x</i>" } }], {});
    await done;
    expect(of("preview_component")).toEqual([]);
  });

  test("are closed blocks that are marked, and scripts can't end their document", () => {
    expect(componentsOf("```html\n<b>\n```")).toEqual([]);
    expect(componentsOf("```html component\n<b>")).toEqual([]);
    expect(componentsOf("````html component\n```\n````\n~~~js component\nlet a = '</script>';\n~~~")).toEqual([
      "```",
      '<!doctype html><div id="root"></div><script type="module">let a = \'<\\/script>\';</script>',
    ]);
    expect(componentsOf("```html component\nx\n```\n".repeat(30))).toHaveLength(10);
  });
});
