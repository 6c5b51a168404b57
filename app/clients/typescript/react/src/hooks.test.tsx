// @vitest-environment jsdom
import { Khala, newId, textOf } from "@khala/client";
import { act, StrictMode } from "react";
import type { ReactNode } from "react";
import { createRoot, hydrateRoot } from "react-dom/client";
import { renderToString } from "react-dom/server";
import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { fakeSockets } from "../../client/src/testing/fake-sockets.ts";
import { FakeThread, THREAD } from "../../client/src/testing/fake-thread.ts";
import { KhalaProvider, usePresence, useRun, useThread, useThreads } from "./index.ts";
import type { UseThread } from "./index.ts";

/** A client whose sockets end at this thread. */
function connected(thread: FakeThread) {
  const network = fakeSockets();
  const khala = new Khala({ server: "http://khala", credentials: { anonKey: "k".repeat(40) }, WebSocket: network.WebSocket });
  /** Let the newest socket connect, and answer as the server does. */
  const greet = (): void => {
    const socket = network.last();
    socket.answer = (frame) => {
      if (frame.type !== "subscribe") return;
      const frames = frame.after === undefined ? thread.snapshot() : thread.delta(frame.after);
      if (frames) socket.deliver(frames);
    };
    socket.sendHello();
  };
  /** Change the thread, and deliver the change. */
  const commit = (change: () => void): void => {
    const before = thread.revision;
    change();
    const frame = thread.delta(before);
    if (frame) network.last().deliver(frame);
  };
  return { khala, network, greet, commit };
}

let host: HTMLElement;
const ends: (() => void)[] = [];

beforeEach(() => {
  (globalThis as { IS_REACT_ACT_ENVIRONMENT?: boolean }).IS_REACT_ACT_ENVIRONMENT = true;
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  host = document.body.appendChild(document.createElement("div"));
});
afterEach(() => {
  for (const end of ends.splice(0)) act(end);
  host.remove();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

async function show(khala: Khala, content: ReactNode, { strict = true } = {}) {
  const root = createRoot(host);
  const tree = <KhalaProvider client={khala}>{content}</KhalaProvider>;
  await act(async () => root.render(strict ? <StrictMode>{tree}</StrictMode> : tree));
  const unmount = (): void => act(() => root.unmount());
  ends.push(() => khala.close());
  return unmount;
}

function Messages({ id = THREAD, onThread }: { id?: string; onThread?: (thread: UseThread) => void }) {
  const thread = useThread(id);
  onThread?.(thread);
  return (
    <main data-status={thread.status}>
      {thread.messages.map((message) => (
        <p key={message.id}>{textOf(message) + (message.delivery ? ` (${message.delivery.phase})` : "")}</p>
      ))}
    </main>
  );
}

const text = (): string[] => [...host.querySelectorAll("p")].map((one) => one.textContent);

test("a thread is shown as it grows, over one connection, also in StrictMode, which ends after the last component", async () => {
  const thread = new FakeThread();
  const { answer } = thread.ask("Why?");
  const { khala, network, greet, commit } = connected(thread);
  const unmount = await show(khala, <><Messages /><Messages /></>); // prettier-ignore
  act(greet);
  expect(text()).toEqual(["Why?", "", "Why?", ""]);
  act(() => commit(() => thread.appendParts(answer, { kind: "text-delta", data: { text: "Because." } })));
  expect(text()).toEqual(["Why?", "Because.", "Why?", "Because."]);
  expect(network.made).toHaveLength(1);
  unmount();
  expect(network.last().readyState).toBe(1);
  vi.advanceTimersByTime(2_000);
  expect(network.last().readyState).toBe(3);
  expect(khala.thread(THREAD).get().status).toBe("idle");
});

test("components that mount again within a second keep the connection, and later ones continue from the revision", async () => {
  const thread = new FakeThread();
  thread.ask("Why?");
  const { khala, network, greet } = connected(thread);
  const first = await show(khala, <Messages />);
  act(greet);
  first();
  const second = await show(khala, <Messages />);
  vi.advanceTimersByTime(2_000);
  expect([network.made.length, network.last().readyState]).toEqual([1, 1]);
  second();
  vi.advanceTimersByTime(2_000);
  await show(khala, <Messages />);
  expect(text()).toEqual(["Why?", ""]);
  act(greet);
  expect(network.made).toHaveLength(2);
  expect(network.last().received).toContainEqual(expect.objectContaining({ type: "subscribe", after: thread.revision }));
});

test("a server renders the initial state, and the page hydrates without a difference and then goes on", async () => {
  const thread = new FakeThread();
  const { answer } = thread.ask("Why?");
  const [server, { khala, greet, commit }] = [connected(thread).khala, connected(thread)];
  const initial = JSON.parse(JSON.stringify(thread.snapshot())) as ReturnType<FakeThread["snapshot"]>;
  const App = ({ client }: { client: Khala }) => <KhalaProvider client={client}><Rendered initial={initial} /></KhalaProvider>; // prettier-ignore
  host.innerHTML = renderToString(<App client={server} />);
  expect(text()).toEqual(["Why?", ""]);
  const errors = vi.fn();
  await act(async () => hydrateRoot(host, <App client={khala} />, { onRecoverableError: errors }));
  act(greet);
  act(() => commit(() => thread.appendParts(answer, { kind: "text-delta", data: { text: "Because." } })));
  expect(text()).toEqual(["Why?", "Because."]);
  expect(errors).not.toHaveBeenCalled();
  ends.push(() => khala.close(), () => server.close()); // prettier-ignore
});

function Rendered({ initial }: { initial: ReturnType<FakeThread["snapshot"]> }) {
  return <>{useThread(THREAD, { initial }).messages.map((message) => <p key={message.id}>{textOf(message)}</p>)}</>; // prettier-ignore
}

test("a message is shown at once, is sent under its id, and is replaced by the server's", async () => {
  const thread = new FakeThread();
  const { khala, greet, commit } = connected(thread);
  const requests: { messageId: string; text: string }[] = [];
  let accept: (response: Response) => void = () => undefined;
  vi.stubGlobal("fetch", (_: string, { body }: { body: string }) => {
    requests.push(JSON.parse(body) as (typeof requests)[number]);
    return new Promise<Response>((resolve) => (accept = resolve));
  });
  let current: UseThread | null = null;
  await show(khala, <Messages onThread={(one) => void (current = one)} />);
  act(greet);
  let id = "";
  await act(async () => {
    id = (current as unknown as UseThread).send("Hello");
  });
  expect(text()).toEqual(["Hello (sending)"]);
  expect(requests).toMatchObject([{ messageId: id, text: "Hello" }]);
  act(() => commit(() => thread.ask("Hello", undefined, id)));
  expect(text()).toEqual(["Hello", ""]);
  await act(async () => accept(Response.json({ threadId: THREAD, userMessageId: id, assistantMessageId: "a", runId: "r", revision: 2 }, { status: 202 })));
  expect(text()).toEqual(["Hello", ""]);
  expect(khala.queued.get()).toEqual([]);
});

test("a message that is refused stays with its reason, and can be sent again or withdrawn", async () => {
  const { khala, greet } = connected(new FakeThread());
  const problem = { title: "Limit", status: 429, code: "budget_exhausted", detail: "Later." };
  vi.stubGlobal("fetch", () => Promise.resolve(Response.json(problem, { status: 429, headers: { "Retry-After": "60" } })));
  let current: UseThread | null = null;
  const thread = (): UseThread => current as unknown as UseThread;
  await show(khala, <Messages onThread={(one) => void (current = one)} />);
  act(greet);
  await act(async () => void thread().send("Hello"));
  await act(async () => Promise.resolve());
  const [message] = thread().messages;
  expect(message?.delivery).toMatchObject({ phase: "failed", code: "budget_exhausted", message: "Later.", retryAfter: 60 });
  await act(async () => thread().withdraw(message?.id ?? ""));
  expect(text()).toEqual([]);
});

test("a component that shows one run is rendered again only when its answer changes", async () => {
  const thread = new FakeThread();
  const [first, second] = [thread.ask("One?"), thread.ask("Two?")];
  // The fake thread's messages have no run of their own.
  const snapshot = (): ReturnType<FakeThread["snapshot"]> => ({ ...thread.snapshot(), messages: thread.snapshot().messages.map((message) => ({ ...message, ...(message.role === "assistant" && { runId: `run-${message.id}` }) })) });
  const { khala, network, commit } = connected(thread);
  let renders = 0;
  function One() {
    renders++;
    const { text: answer, status } = useRun(THREAD, `run-${first.answer}`);
    return <p>{`${status}: ${answer}`}</p>;
  }
  await show(khala, <One />, { strict: false });
  act(() => {
    network.last().sendHello();
    network.last().deliver(snapshot());
  });
  expect(text()).toEqual(["writing: "]);
  const before = renders;
  act(() => commit(() => thread.appendParts(second.answer, { kind: "text-delta", data: { text: "Not this." } })));
  expect(renders).toBe(before);
  const finish = { kind: "finish", data: { reason: "stop", usage: { inputTokens: 1, outputTokens: 1 } } } as const;
  act(() => commit(() => thread.appendParts(first.answer, { kind: "text-delta", data: { text: "This." } }, finish)));
  expect(text()).toEqual(["done: This."]);
  expect(renders).toBe(before + 1);
});

test("another thread is shown as soon as the id changes, and nothing of the one before", async () => {
  const { khala, network, greet } = connected(new FakeThread());
  const root = createRoot(host);
  const app = (id: string): ReactNode => <KhalaProvider client={khala}><Messages id={id} /></KhalaProvider>; // prettier-ignore
  await act(async () => root.render(app(THREAD)));
  act(greet);
  expect(host.querySelector("main")?.dataset.status).toBe("live");
  await act(async () => root.render(app(newId())));
  expect(host.querySelector("main")?.dataset.status).toBe("connecting");
  vi.advanceTimersByTime(2_000);
  expect(network.made.map(({ readyState }) => readyState)).toEqual([3, 0]);
  act(() => root.unmount());
  ends.push(() => khala.close());
});

test("presence is said while the component is mounted, and others are shown", async () => {
  const { khala, network, greet } = connected(new FakeThread());
  const Present = () => <p>{usePresence(THREAD, { typing: true }).participants.map(({ name }) => name).join()}</p>; // prettier-ignore
  const unmount = await show(khala, <Present />);
  act(greet);
  const said = (): unknown[] => network.last().received.flatMap((frame) => (frame.type === "presence" ? [frame.state] : []));
  expect(said()).toEqual([{ typing: true }]);
  act(() => network.last().deliver({ type: "presence", threadId: THREAD, participants: [{ id: "1", name: "Ada", anonymous: false, state: {} }] }));
  expect(text()).toEqual(["Ada"]);
  unmount();
  expect(said()).toEqual([{ typing: true }, null]);
});

test("a guest's list is read over HTTP, and has what is created", async () => {
  const { khala } = connected(new FakeThread());
  const made = { id: newId(), title: "New", visibility: "private", revision: 1, createdAt: "2031-01-01T00:00:00Z", updatedAt: "2031-01-01T00:00:00Z" };
  vi.stubGlobal("fetch", (_: string, { method }: { method: string }) => Promise.resolve(Response.json(method === "POST" ? { thread: made } : { items: [{ ...made, id: newId(), title: "Old" }] }, { status: method === "POST" ? 201 : 200 })));
  const List = () => <>{useThreads().items.map(({ thread }) => <p key={thread.id}>{thread.title}</p>)}</>; // prettier-ignore
  await show(khala, <List />);
  await act(() => vi.waitFor(() => expect(khala.threads.get().items).toHaveLength(1)));
  expect(text()).toEqual(["Old"]);
  await act(async () => {
    await khala.threads.create({ id: made.id });
  });
  expect(text()).toEqual(["New", "Old"]);
});

test("without a provider, hooks say what is missing", () => {
  expect(() => renderToString(<Messages />)).toThrow("<KhalaProvider client={…}>");
});
