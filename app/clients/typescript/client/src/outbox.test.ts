import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";

import type { SendResult } from "./frames.ts";
import type { OutboxEntry, OutboxOptions } from "./outbox.ts";
import { Outbox, OutboxFullError } from "./outbox.ts";
import { ApiError, NetworkError, retryNow } from "./requests.ts";
import { MemoryStore } from "./stores.ts";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const message = (text: string, threadId = "t") => ({ threadId, keys: { anonKey: "k" }, text, attachments: [], options: {} });
const settled = (): Promise<unknown> => vi.advanceTimersByTimeAsync(0);

/** A server that takes messages once, by their ids; `fail` is asked before each whether and how it fails. */
function serverOf(fail: (entry: OutboxEntry) => Error | null = () => null) {
  const taken: OutboxEntry[] = [];
  const tries: string[] = [];
  const send = (entry: OutboxEntry): Promise<SendResult> => {
    tries.push(entry.text);
    const error = fail(entry);
    if (error) return Promise.reject(error);
    if (!taken.some(({ id }) => id === entry.id)) taken.push(entry);
    return Promise.resolve({ threadId: entry.threadId, userMessageId: entry.id, assistantMessageId: "a", runId: "r", revision: taken.length });
  };
  return { taken, tries, send, texts: () => taken.map(({ text }) => text) };
}

function outboxOf(send: (entry: OutboxEntry) => Promise<SendResult>, options: Partial<OutboxOptions> = {}) {
  const store = new MemoryStore<OutboxEntry>();
  const seen: string[][] = [];
  const changed = (entries: readonly OutboxEntry[]): void => void seen.push(entries.map(({ state }) => state.phase));
  const outbox = new Outbox({ store, onChange: changed, send, isOnline: () => true, locks: null, ...options });
  return { outbox, store: options.store ?? store, seen };
}

describe("a message", () => {
  test("is shown at once, sent, and kept no longer once the server has it", async () => {
    const server = serverOf();
    const { outbox, store, seen } = outboxOf(server.send);
    const id = outbox.add(message("Hello"));
    expect(outbox.entries).toMatchObject([{ id, text: "Hello" }]);
    await settled();
    expect(server.taken).toMatchObject([{ id, text: "Hello", keys: { anonKey: "k" } }]);
    expect(seen.map(([phase]) => phase)).toEqual(["queued", "sending", "sent"]);
    expect(outbox.entries[0]?.state).toMatchObject({ phase: "sent", sent: { runId: "r" } });
    await outbox.whenStored();
    expect(await store.all()).toEqual([]);
  });

  test("is tried again under its id while the failure passes", async () => {
    let fails = 3;
    const server = serverOf(() => (fails-- > 0 ? new NetworkError("") : null));
    const { outbox } = outboxOf(server.send);
    const id = outbox.add(message("Hello"));
    await vi.advanceTimersByTimeAsync(10_000);
    expect(server.tries).toHaveLength(4);
    expect(server.taken.map((entry) => entry.id)).toEqual([id]);
  });

  test("whose answer was lost is there once", async () => {
    const server = serverOf();
    let isLost = true;
    const losing = async (entry: OutboxEntry): Promise<SendResult> => {
      const sent = await server.send(entry);
      if (isLost) throw new NetworkError(String((isLost = false)));
      return sent;
    };
    outboxOf(losing).outbox.add(message("Hello"));
    await vi.advanceTimersByTimeAsync(10_000);
    expect(server.tries).toHaveLength(2);
    expect(server.texts()).toEqual(["Hello"]);
  });

  test("that is refused stops, with what the server said, until it is sent again", async () => {
    let refuses = true;
    const server = serverOf(() => (refuses ? new ApiError(429, { code: "rate_limited", detail: "Slower." }, 9) : null));
    const { outbox, store } = outboxOf(server.send);
    const id = outbox.add(message("Hello"));
    await settled();
    const at = Date.now() + 9000;
    expect(outbox.entries[0]?.state).toEqual({ phase: "failed", code: "rate_limited", message: "Slower.", errors: [], retryAfter: 9, retryAt: at, passing: false });
    await vi.advanceTimersByTimeAsync(600_000);
    expect(server.tries).toHaveLength(1);
    expect((await store.all()).map(({ state }) => state.phase)).toEqual(["failed"]);
    refuses = false;
    outbox.resend(id);
    outbox.resend(id);
    await settled();
    expect(server.taken.map((entry) => entry.id)).toEqual([id]);
    expect(server.tries).toHaveLength(2);
  });

  test("fails when nothing helped, and a fault of our own is told, not hidden", async () => {
    const server = serverOf(() => new NetworkError("Gone."));
    const { outbox } = outboxOf(server.send, { maxAttempts: 3 });
    outbox.add(message("Hello"));
    await vi.advanceTimersByTimeAsync(60_000);
    expect(server.tries).toHaveLength(3);
    expect(outbox.entries[0]?.state).toMatchObject({ phase: "failed", code: "unreachable", passing: true });
    const faulty = outboxOf(serverOf(() => new TypeError("Oops.")).send).outbox;
    faulty.add(message("Hello"));
    await settled();
    expect(faulty.entries[0]?.state).toMatchObject({ phase: "failed", code: "internal", message: "Oops.", passing: false });
  });

  test("keeps the id that it was given", async () => {
    const server = serverOf();
    const { outbox } = outboxOf(server.send);
    expect(outbox.add({ ...message("Hello"), id: "mine" })).toBe("mine");
    await settled();
    expect(server.taken.map(({ id }) => id)).toEqual(["mine"]);
  });

  test("can be taken back, and is not tried again then", async () => {
    const server = serverOf(() => new NetworkError(""));
    const { outbox, store } = outboxOf(server.send);
    const id = outbox.add(message("Hello"));
    await settled();
    expect(outbox.withdraw(id)?.text).toBe("Hello");
    expect(outbox.withdraw(id)).toBeNull();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(server.tries).toHaveLength(1);
    expect(outbox.entries).toEqual([]);
    expect(await store.all()).toEqual([]);
  });

  test("goes out with what it belongs to", async () => {
    const asked: [string, unknown][] = [];
    vi.stubGlobal("fetch", (path: string, { body }: { body: string }) => {
      asked.push([path, JSON.parse(body)]);
      return Promise.resolve(new Response(JSON.stringify({ revision: 1 }), { status: 202 }));
    });
    const outbox = new Outbox({ store: new MemoryStore(), onChange: () => undefined, locks: null, isOnline: () => true });
    const blob = { blobId: "b", size: 1, sha256: "", mediaType: "text/plain" };
    const id = outbox.add({ ...message("Hello"), attachments: [blob], options: { autopilot: true }, parentId: "p" });
    await settled();
    const body = { messageId: id, text: "Hello", attachments: ["b"], options: { autopilot: true }, parentId: "p" };
    expect(asked).toEqual([["/api/threads/t/send", body]]);
  });
});

describe("several messages", () => {
  test("of a thread go one after the other; those behind wait their turn at the server, too", async () => {
    let isDown = true;
    const server = serverOf(({ threadId }) => (isDown && threadId === "t" ? new NetworkError("") : null));
    const { outbox } = outboxOf(server.send);
    for (const text of ["one", "two", "three"]) outbox.add(message(text));
    outbox.add(message("elsewhere", "u"));
    await settled();
    expect(server.tries).toEqual(["one", "elsewhere"]);
    isDown = false;
    await vi.advanceTimersByTimeAsync(10_000);
    expect(server.texts()).toEqual(["elsewhere", "one", "two", "three"]);
    const options = Object.fromEntries(server.taken.map(({ text, options: given }) => [text, given.ifBusy]));
    expect(options).toEqual({ one: undefined, two: "queue", three: "queue", elsewhere: undefined });
  });

  test("are held up by none that was refused", async () => {
    const server = serverOf(({ text }) => (text === "bad" ? new ApiError(400, { code: "invalid_input" }) : null));
    const { outbox } = outboxOf(server.send);
    for (const text of ["bad", "good"]) outbox.add(message(text));
    await settled();
    expect(server.texts()).toEqual(["good"]);
  });

  test("are no more than the outbox holds", () => {
    const { outbox } = outboxOf(() => new Promise(() => undefined), { maxPending: 2 });
    outbox.add(message("one"));
    outbox.add(message("two"));
    expect(() => outbox.add(message("three"))).toThrow(OutboxFullError);
    expect(outbox.entries).toHaveLength(2);
  });

  test("leave once they have arrived, or were reset away before they were seen", async () => {
    const { outbox } = outboxOf(serverOf().send);
    const [one] = [outbox.add(message("one")), outbox.add(message("two")), outbox.add(message("other", "u"))];
    await settled();
    outbox.removeDelivered("t", { messages: [{ id: one }], revision: 1 });
    expect(outbox.entries.map(({ text }) => text)).toEqual(["two", "other"]);
    outbox.removeDelivered("t", { messages: [], revision: 2 });
    expect(outbox.entries.map(({ text }) => text)).toEqual(["two", "other"]);
    outbox.removeDelivered("t", { messages: [], revision: 3 });
    expect(outbox.entries.map(({ text }) => text)).toEqual(["other"]);
    outbox.clear("t");
    outbox.clear("u");
    expect(outbox.entries).toEqual([]);
  });
});

test("without a network nothing is tried, however long, and all goes out when it is back", async () => {
  let isOnline = false;
  const server = serverOf();
  const { outbox } = outboxOf(server.send, { isOnline: () => isOnline });
  for (const text of ["one", "two"]) outbox.add(message(text));
  await vi.advanceTimersByTimeAsync(3_600_000);
  expect(server.tries).toEqual([]);
  expect(outbox.entries.map(({ state }) => state.phase)).toEqual(["queued", "queued"]);
  isOnline = true;
  retryNow();
  await settled();
  expect(server.texts()).toEqual(["one", "two"]);
});

test("a failure for want of a network counts as none", async () => {
  let isOnline = true;
  const server = serverOf(() => (isOnline ? null : new NetworkError("")));
  const cut = (entry: OutboxEntry): Promise<SendResult> => {
    isOnline = server.tries.length > 0;
    return server.send(entry);
  };
  const { outbox } = outboxOf(cut, { isOnline: () => isOnline, maxAttempts: 1 });
  outbox.add(message("one"));
  await settled();
  expect(outbox.entries[0]?.state.phase).toBe("queued");
  isOnline = true;
  retryNow();
  await settled();
  expect(server.texts()).toEqual(["one"]);
});

describe("after a reload", () => {
  const STUCK = (): Promise<SendResult> => new Promise(() => undefined);

  test("what was not sent goes out under the same ids, in order", async () => {
    const first = outboxOf(STUCK);
    const ids = [first.outbox.add(message("one"))];
    vi.advanceTimersByTime(1);
    ids.push(first.outbox.add(message("two")));
    await first.outbox.whenStored();
    const server = serverOf();
    const { outbox } = outboxOf(server.send, { store: first.store });
    await outbox.restore();
    await settled();
    expect(server.taken.map(({ id }) => id)).toEqual(ids);
    expect(outbox.entries.every(({ state }) => state.phase === "sent")).toBe(true);
    expect(await first.store.all()).toEqual([]);
  });

  test("what was refused is still there, and still refused", async () => {
    const first = outboxOf(serverOf(() => new ApiError(403, { code: "forbidden" })).send);
    const id = first.outbox.add(message("one"));
    await settled();
    await first.outbox.whenStored();
    const server = serverOf();
    const { outbox } = outboxOf(server.send, { store: first.store });
    await outbox.restore();
    await settled();
    expect(server.tries).toEqual([]);
    expect(outbox.entries).toMatchObject([{ id, state: { code: "forbidden" } }]);
  });

  test("what another tab is sending is left to it, and taken over if that tab goes", async () => {
    const locks = fakeLocks();
    const server = serverOf();
    let arrive: () => void = () => undefined;
    const slow = (entry: OutboxEntry): Promise<SendResult> => new Promise((resolve) => (arrive = () => resolve(server.send(entry))));
    const first = outboxOf(slow, { locks });
    first.outbox.add(message("one"));
    await settled();
    const second = outboxOf(server.send, { store: first.store, locks });
    await second.outbox.restore();
    await settled();
    expect(second.outbox.entries).toMatchObject([{ text: "one", state: { phase: "queued" } }]);
    arrive();
    await settled();
    await first.outbox.whenStored();
    expect(server.tries).toEqual(["one"]);
    expect(second.outbox.entries).toEqual([]);
    const third = outboxOf(STUCK, { store: first.store, locks });
    third.outbox.add(message("two"));
    await third.outbox.whenStored();
    locks.release();
    const fourth = outboxOf(server.send, { store: first.store, locks });
    await fourth.outbox.restore();
    await settled();
    expect(server.texts()).toEqual(["one", "two"]);
  });
});

test("what can't be kept is sent all the same, and that is told", async () => {
  const full = (): Promise<never> => Promise.reject(new Error("No room."));
  const store = { all: full, get: full, put: full, remove: full };
  const unkept = vi.fn();
  const server = serverOf();
  const { outbox } = outboxOf(server.send, { store, onStorageError: unkept });
  await outbox.restore();
  expect(unkept).toHaveBeenCalledTimes(1);
  outbox.add(message("one"));
  await settled();
  await outbox.whenStored();
  expect(server.texts()).toEqual(["one"]);
  expect(unkept).toHaveBeenCalledTimes(3);
});

/** Locks as browsers have them, as far as the outbox asks; `release` is what becomes of those whose tab is closed. */
function fakeLocks() {
  let held = new Map<string, Promise<unknown>>();
  const request = (name: string, act: (lock: Lock | null) => unknown): Promise<unknown> => {
    const turn = (held.get(name) ?? Promise.resolve()).then(() => act(null));
    held.set(name, turn);
    return turn;
  };
  return { request: request as LockManager["request"], release: () => (held = new Map()) };
}

describe("what an account wrote", () => {
  const stored = async (): Promise<MemoryStore<OutboxEntry>> => {
    const store = new MemoryStore<OutboxEntry>();
    for (const [id, who] of Object.entries({ a: "ann", b: "bob" })) await store.put({ ...message(who), id, who, state: { phase: "queued" } });
    return store;
  };

  test("before it left is neither sent by somebody else nor kept", async () => {
    const [server, store] = [serverOf(), await stored()];
    const { outbox } = outboxOf(server.send, { store });
    await outbox.restore(({ who }) => who === "bob");
    await settled();
    await outbox.whenStored();
    expect(server.texts()).toEqual(["bob"]);
    expect(await store.all()).toEqual([]);
  });

  test("goes with it, also what this visit never knew of", async () => {
    const [server, store] = [serverOf(() => new ApiError(403, {})), await stored()];
    const { outbox } = outboxOf(server.send, { store });
    outbox.add({ ...message("now"), who: "ann" });
    await settled();
    await outbox.purge(({ who }) => who === "ann");
    await outbox.whenStored();
    expect(outbox.entries).toEqual([]);
    expect((await store.all()).map(({ id }) => id)).toEqual(["b"]);
  });
});
