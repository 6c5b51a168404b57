import { afterEach, expect, test, vi } from "vitest";

import { ask, claim, createThread } from "./example.ts";
import example from "./example.ts?raw";
import readme from "../README.md?raw";
import { random } from "./testing/random.ts";
import { fakeSockets } from "./testing/fake-sockets.ts";
import { FakeThread } from "./testing/fake-thread.ts";

afterEach(() => void vi.unstubAllGlobals());

test("the README shows the example that is tested here", () => {
  const shown = /```ts\n([^]*?)```/.exec(readme)?.[1];
  expect(shown).toBe(example.replaceAll("./index.ts", "@khala/client"));
});

test("the example creates a thread, follows it, asks, continues from what it knows, and claims it", async () => {
  const network = fakeSockets();
  const asked: string[] = [];
  let thread = new FakeThread();
  const tell = (since: number): void => {
    const frame = thread.delta(since);
    if (frame) network.last().deliver(frame);
  };
  const answer = (messageId: string, text: string): void => {
    const since = thread.revision;
    const made = thread.ask(text, undefined, messageId);
    tell(since);
    for (const word of ["Be", "cause."]) {
      thread.appendParts(made.answer, { kind: "text-delta", data: { text: word } });
      tell(thread.revision - 1);
    }
    thread.appendParts(made.answer, { kind: "finish", data: { reason: "stop", usage: { inputTokens: 1, outputTokens: 1 } } });
    tell(thread.revision - 1);
  };
  const greeted = (): void => {
    const socket = network.last();
    if (socket.readyState !== 0) return;
    socket.answer = (frame) => {
      if (frame.type !== "subscribe") return;
      asked.push(`subscribe ${frame.after ?? "anew"}`);
      if (frame.after === undefined) socket.deliver(thread.snapshot());
      else tell(frame.after);
    };
    socket.sendHello();
  };
  vi.stubGlobal("WebSocket", network.WebSocket);
  vi.stubGlobal("fetch", (url: string, { method, body, headers }: { method: string; body: string; headers: Record<string, string> }) => {
    const said = JSON.parse(body) as { id?: string; messageId?: string; text?: string };
    asked.push(`${method} ${url.replace(/threads\/[^/]+/, "threads/T")} ${Object.keys(headers).join(" ")}`);
    if (said.id) thread = new FakeThread(said.id);
    if (said.messageId) {
      greeted();
      answer(said.messageId, said.text ?? "");
    }
    return Promise.resolve(new Response("{}", { status: 200 }));
  });

  const { threadId, keys } = await createThread("http://khala");
  const told: string[] = [];
  const known = await ask(threadId, keys, "Why?", (text) => told.push(text), undefined, "http://khala");
  expect(told).toEqual(["", "Be", "Because.", "Because."]);
  expect(network.last()).toMatchObject({ url: "ws://khala/api/ws", readyState: 3 });
  thread.commitSomething(random(1));
  const after = await ask(threadId, keys, "And?", () => undefined, JSON.parse(JSON.stringify(known)) as typeof known, "http://khala");
  expect(after.revision).toBe(thread.revision);
  expect(after.messages.map(({ id }) => id)).toEqual(thread.ids);
  await claim(threadId, keys, "token", "http://khala");
  expect(asked).toEqual([
    "POST http://khala/api/threads Accept Content-Type",
    "POST http://khala/api/threads/T/send Accept X-Anon-Key Content-Type",
    "subscribe anew",
    "POST http://khala/api/threads/T/send Accept X-Anon-Key Content-Type",
    `subscribe ${known.revision ?? ""}`,
    "POST http://khala/api/threads/T/claim Accept Authorization Content-Type",
  ]);
});
