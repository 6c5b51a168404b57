import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";

import { textOf } from "./fold.ts";
import type { ClientFrame, ThreadListEntry } from "./frames.ts";
import { fromSnapshot } from "./state.ts";
import { startClient } from "./testing/start-client.ts";
import type { FakeSocket } from "./testing/fake-sockets.ts";
import { FakeThread, THREAD } from "./testing/fake-thread.ts";

const OTHER = "00000000-0000-7000-8000-000000000002";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** A client that follows a thread with an answer under way. */
function following() {
  const thread = new FakeThread();
  const { answer } = thread.ask("Why?");
  const known = startClient();
  known.client.subscribe(THREAD, { anonKey: "key" });
  const socket = known.network.last();
  socket.sendHello();
  socket.deliver(thread.snapshot());
  return { ...known, thread, answer, socket, say: (text: string) => thread.appendParts(answer, { kind: "text-delta", data: { text } }) };
}

const delta = (thread: FakeThread, since: number) => {
  const found = thread.delta(since);
  if (found === null) throw new Error("Nothing has changed.");
  return found;
};
const subscriptions = (socket: FakeSocket): ClientFrame[] => socket.received.filter(({ type }) => type === "subscribe");

describe("following a thread", () => {
  test("begins with hello, a subscription with the keys, and a snapshot", () => {
    const { socket, state, events, thread } = following();
    expect(socket.protocol).toBe("khala.v1");
    expect(socket.received).toEqual([{ type: "subscribe", threadId: THREAD, anonKey: "key" }]);
    expect(state()).toEqual(fromSnapshot(thread.snapshot()));
    expect(events.connections.map(({ phase }) => phase)).toEqual(["connecting", "live"]);
  });

  test("goes on by deltas, and tells nothing of stale ones", () => {
    const { socket, state, events, thread, answer, say } = following();
    const before = thread.revision;
    say("Because.");
    socket.deliver(delta(thread, before));
    socket.deliver(delta(thread, before));
    expect(events.states).toHaveLength(2);
    expect(textOf(state()?.messages.find(({ id }) => id === answer) ?? { content: [] })).toBe("Because.");
  });

  test("is resumed at its revision after the connection was lost", () => {
    const { socket, network, thread, say, state } = following();
    const { revision } = thread;
    say("lost");
    socket.disconnect();
    vi.advanceTimersByTime(8000);
    const second = network.last();
    expect(second).not.toBe(socket);
    second.sendHello();
    expect(subscriptions(second)).toEqual([{ type: "subscribe", threadId: THREAD, anonKey: "key", after: revision }]);
    second.deliver(delta(thread, revision));
    expect(state()?.revision).toBe(thread.revision);
  });

  test("hears nothing more from a connection that was given up", () => {
    const { socket, network, thread, say, events } = following();
    const { revision } = thread;
    say("late");
    const late = { data: JSON.stringify(delta(thread, revision)) } as MessageEvent;
    const hear = socket.onmessage;
    socket.disconnect();
    hear?.(late);
    vi.advanceTimersByTime(8000);
    network.last().sendHello();
    hear?.(late);
    expect(events.states).toHaveLength(1);
  });

  test("goes on from what was known at another time", () => {
    const thread = new FakeThread();
    thread.ask("Why?");
    const { client, network } = startClient();
    client.subscribe(THREAD, {}, fromSnapshot(thread.snapshot()));
    network.last().sendHello();
    expect(subscriptions(network.last())).toEqual([{ type: "subscribe", threadId: THREAD, after: thread.revision }]);
  });

  test("moves to another thread over the same connection, and frames of the first count no more", () => {
    const { client, socket, network, events, thread, say } = following();
    client.subscribe(OTHER);
    expect(network.made).toHaveLength(1);
    expect(socket.received.slice(1)).toEqual([{ type: "unsubscribe", threadId: THREAD }, { type: "subscribe", threadId: OTHER }]);
    const { revision } = thread;
    say("late");
    socket.deliver(delta(thread, revision));
    socket.deliver(thread.snapshot());
    expect(events.states).toHaveLength(1);
    expect(subscriptions(socket)).toHaveLength(2);
  });

  test("shows an API token before it subscribes", () => {
    const { client, network } = startClient();
    client.subscribe(THREAD, { token: "secret" });
    network.last().sendHello();
    expect(network.last().received.map(({ type }) => type)).toEqual(["authenticate", "subscribe"]);
  });

  test("ends with hanging up", () => {
    const { client, socket, network } = following();
    client.close();
    expect(socket.received.at(-1)).toEqual({ type: "unsubscribe", threadId: THREAD });
    expect(socket.readyState).toBe(3);
    vi.advanceTimersByTime(120_000);
    expect(network.made).toHaveLength(1);
  });
});

describe("what is missing", () => {
  test("is asked for once, by the revision that is known", () => {
    const { socket, thread, say, state } = following();
    const known = thread.revision;
    say("one ");
    const missed = thread.revision;
    say("two ");
    socket.deliver(delta(thread, missed));
    socket.deliver(delta(thread, missed));
    expect(subscriptions(socket).slice(1)).toEqual([{ type: "subscribe", threadId: THREAD, anonKey: "key", after: known }]);
    socket.deliver(delta(thread, known));
    expect(state()?.revision).toBe(thread.revision);
  });

  test("is given up on where asking doesn't help: all is asked for anew", () => {
    const { socket, network, thread, say, state } = following();
    say("one ");
    const missed = thread.revision;
    say("two ");
    socket.deliver(delta(thread, missed));
    vi.advanceTimersByTime(5001);
    socket.deliver(delta(thread, missed));
    vi.advanceTimersByTime(8000);
    network.last().sendHello();
    expect(subscriptions(network.last())).toEqual([{ type: "subscribe", threadId: THREAD, anonKey: "key" }]);
    network.last().deliver(thread.snapshot());
    expect(state()?.revision).toBe(thread.revision);
  });

  test("within a message calls for a snapshot; what is held stays in sight, and deltas wait for it", () => {
    const { socket, network, events, thread, say } = following();
    const { revision } = thread;
    say("a");
    say("b");
    const broken = delta(thread, revision);
    socket.deliver({ ...broken, parts: broken.parts.slice(1) });
    expect(events.states).toHaveLength(1);
    vi.advanceTimersByTime(8000);
    const second = network.last();
    second.sendHello();
    expect(subscriptions(second)).toEqual([{ type: "subscribe", threadId: THREAD, anonKey: "key" }]);
    second.deliver(broken);
    expect(events.states).toHaveLength(1);
    second.deliver(thread.snapshot());
    expect(events.states.at(-1)?.revision).toBe(thread.revision);
  });

  test("at the end of an answer is asked for when it stays silent", () => {
    const { socket, thread } = following();
    vi.advanceTimersByTime(25_000);
    expect(socket.received.slice(1)).toEqual([{ type: "subscribe", threadId: THREAD, anonKey: "key", after: thread.revision }, { type: "ping" }]);
  });
});

describe("the connection", () => {
  test("is asked for a sign of life after a silence, and lost without one", () => {
    const { socket, network, events, thread } = following();
    vi.advanceTimersByTime(25_000);
    socket.deliver({ type: "pong" });
    vi.advanceTimersByTime(24_999);
    expect(socket.received.filter(({ type }) => type === "ping")).toHaveLength(1);
    vi.advanceTimersByTime(1 + 25_000);
    expect(events.connections.at(-1)?.phase).toBe("waiting");
    vi.advanceTimersByTime(8000);
    expect(network.made).toHaveLength(2);
    network.last().sendHello();
    expect(subscriptions(network.last())).toMatchObject([{ after: thread.revision }]);
  });

  test("is tried again when it does not come about in ten seconds", () => {
    const { client, network, events } = startClient();
    client.subscribe(THREAD);
    vi.advanceTimersByTime(10_000);
    expect(events.connections.at(-1)?.phase).toBe("waiting");
    vi.advanceTimersByTime(8000);
    expect(network.made).toHaveLength(2);
    expect(network.made[0]?.readyState).toBe(3);
  });

  test.each([0, 0.5, 0.999])("is tried again after pauses that grow and are jittered (%d)", (jitter) => {
    const { client, network, events } = startClient(jitter);
    client.subscribe(THREAD);
    const pauses = Array.from({ length: 7 }, () => {
      network.last().disconnect();
      const { until = 0 } = events.connections.at(-1) ?? {};
      const pause = until - Date.now();
      vi.advanceTimersByTime(pause + 1);
      return Math.round(pause);
    });
    expect(pauses).toEqual([1000, 2000, 4000, 8000, 8000, 8000, 8000].map((most) => Math.round(250 + jitter * (most - 250))));
  });

  test("that was steady counts as new when it is lost, one that was thrown out for bad frames does not", () => {
    const { socket, events, network } = following();
    vi.advanceTimersByTime(6000);
    socket.disconnect(1012);
    expect((events.connections.at(-1)?.until ?? 0) - Date.now()).toBe(375);
    vi.advanceTimersByTime(375);
    network.last().sendHello();
    network.last().disconnect(1008);
    expect((events.connections.at(-1)?.until ?? 0) - Date.now()).toBe(4125);
  });

  test("is made at once, or asked for a sign of life, when there is reason to", () => {
    const { client, socket, network } = following();
    client.checkConnection();
    expect(socket.received.at(-1)).toEqual({ type: "ping" });
    vi.advanceTimersByTime(4000);
    client.checkConnection();
    expect(network.made).toHaveLength(2);
  });

  test("is not made where nothing is followed", () => {
    const { client, network } = startClient();
    client.checkConnection();
    expect(network.made).toHaveLength(0);
  });

  test("waits for the server when it says that it can't answer now", () => {
    const { socket, events } = following();
    socket.deliver({ type: "error", code: "unavailable", message: "Later." });
    expect(events.connections.at(-1)?.phase).toBe("waiting");
    expect(events.refusals).toEqual([]);
  });

  test("goes on after an error that concerns nothing that is followed", () => {
    const { socket, events } = following();
    socket.deliver({ type: "error", code: "rate_limited", message: "Slower." });
    expect(events.complaints).toEqual(["rate_limited"]);
    expect(events.connections.at(-1)?.phase).toBe("live");
  });
});

describe("a refusal", () => {
  test.each(["forbidden", "thread_not_found"])("ends it for good: %s", (code) => {
    const { socket, events, network } = following();
    socket.deliver({ type: "gone", threadId: THREAD, code });
    expect(events.refusals).toEqual([[code, ""]]);
    expect(socket.readyState).toBe(3);
    vi.advanceTimersByTime(120_000);
    expect(network.made).toHaveLength(1);
  });

  test("of another thread is none of ours", () => {
    const { socket, events } = following();
    socket.deliver({ type: "error", threadId: OTHER, code: "forbidden", message: "No." });
    expect(events.refusals).toEqual([]);
  });

  test("is told of a server that speaks another protocol", () => {
    const { client, network, events } = startClient();
    client.watchThreads(true);
    client.subscribe(THREAD);
    network.last().sendHello(2);
    expect(events.refusals.map(([code]) => code)).toEqual(["protocol"]);
    vi.advanceTimersByTime(120_000);
    expect(network.made).toHaveLength(1);
  });

  test("while we become somebody else counts for nothing: it is asked again as whoever we are then", async () => {
    const { client, socket, network, events, thread } = following();
    const became = client.changeIdentity(() => {
      socket.deliver({ type: "gone", threadId: THREAD, code: "forbidden" });
      return Promise.resolve("me");
    });
    expect(await became).toBe("me");
    expect(events.refusals).toEqual([]);
    network.last().sendHello();
    expect(subscriptions(network.last())).toMatchObject([{ threadId: THREAD, after: thread.revision }]);
  });
});

describe("the account's list", () => {
  const at = "2031-01-01T00:00:00Z";
  const entry: ThreadListEntry = { thread: { id: THREAD, visibility: "private", revision: 1, createdAt: at, updatedAt: at }, role: "owner", unread: false, running: false, needsApproval: false, changedAt: at };

  function watching() {
    const known = startClient();
    known.client.watchThreads(true);
    const socket = known.network.last();
    socket.sendHello();
    socket.deliver({ type: "account", revision: 3, whole: true, threads: [entry], hasMore: false });
    return { ...known, socket };
  }

  test("is followed from where it was", () => {
    const { socket, events, network } = watching();
    expect(socket.received).toEqual([{ type: "watch" }]);
    expect(events.lists.at(-1)?.entries.size).toBe(1);
    socket.disconnect();
    vi.advanceTimersByTime(8000);
    network.last().sendHello();
    expect(network.last().received).toEqual([{ type: "watch", after: 3 }]);
  });

  test("is asked for what is missing, and for all of it if that does not help", () => {
    const { socket } = watching();
    const later = { type: "account", from: 5, revision: 6, threads: [], removed: [] } as const;
    socket.deliver({ ...later, threads: [], removed: [] });
    socket.deliver({ ...later, threads: [], removed: [] });
    expect(socket.received.slice(1)).toEqual([{ type: "watch", after: 3 }]);
    vi.advanceTimersByTime(5000);
    socket.deliver({ ...later, threads: [], removed: [] });
    expect(socket.received.at(-1)).toEqual({ type: "watch" });
  });

  test("ends when the account does, and hanging up is due when nothing else is followed", () => {
    const { client, socket, events } = watching();
    socket.deliver({ type: "error", code: "unauthorized", message: "Sign in." });
    expect(events.signedOut).toBe(1);
    client.watchThreads(true);
    client.watchThreads(false);
    expect(socket.received.slice(-2).map(({ type }) => type)).toEqual(["watch", "unwatch"]);
    client.unsubscribe();
    expect(socket.readyState).toBe(3);
  });
});

test("presence is said again on every connection, and ends with null", () => {
  const { client, socket, network, events } = following();
  client.setPresence({ typing: true });
  socket.deliver({ type: "presence", threadId: THREAD, participants: [{ id: "p", anonymous: true, state: {} }], more: 2 });
  expect(events.present).toEqual([[1, 2]]);
  socket.disconnect();
  vi.advanceTimersByTime(8000);
  network.last().sendHello();
  expect(network.last().received.at(-1)).toEqual({ type: "presence", threadId: THREAD, state: { typing: true } });
  client.setPresence(null);
  client.setPresence(null);
  expect(network.last().received.filter((frame) => frame.type === "presence" && frame.state === null)).toHaveLength(1);
});

test("what is adopted from elsewhere counts only for the thread that is followed", () => {
  const { client, events, thread } = following();
  client.addOlderMessages(OTHER, { items: [], hasMore: true });
  expect(events.states).toHaveLength(1);
  client.addOlderMessages(THREAD, { items: [], hasMore: true });
  expect(events.states.at(-1)?.hasMore).toBe(true);
  client.addProgress(THREAD, thread.open[0] ?? "", []);
  expect(events.states).toHaveLength(3);
});
