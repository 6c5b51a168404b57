import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { applyPatch, EMPTY_THREAD } from "@khala/client";
import type { ThreadListEntry, ThreadState } from "@khala/client";
import type { Batch } from "../workers/stream.messages.ts";
import { Relay } from "../workers/stream.relay.ts";
import type { ApiGet, RelayClient, ThreadStorage } from "../workers/stream.relay.ts";

const TIME = "2026-01-01T00:00:00Z";
const FRESH = { isSnapshot: false, wasReset: false, lag: null };

function state(revision: number, words: string, threadId = "t"): ThreadState {
  const thread = { id: threadId, visibility: "private" as const, revision, createdAt: TIME, updatedAt: TIME };
  const message = { id: "a", threadId, role: "assistant" as const, status: "final" as const, seq: 1, content: [{ type: "text" as const, text: words }], createdAt: TIME, updatedAt: TIME };
  return { revision, thread, messages: [message], hasMore: false, plans: [] };
}

function listed(id: string, changedAt = TIME): ThreadListEntry {
  const thread = { id, visibility: "private" as const, revision: 1, createdAt: TIME, updatedAt: TIME };
  return { thread, role: "owner", unread: false, running: false, needsApproval: false, changedAt };
}

class Shelf implements ThreadStorage {
  readonly rows = new Map<string, { who: string | null; state: ThreadState }>();

  load(threadId: string, who: string | null): Promise<ThreadState | null> {
    const row = this.rows.get(threadId);
    return Promise.resolve(row?.who === who ? row.state : null);
  }

  save(threadId: string, who: string | null, kept: ThreadState): Promise<void> {
    this.rows.set(threadId, { who, state: kept });
    return Promise.resolve();
  }

  forget(threadId: string): Promise<void> {
    this.rows.delete(threadId);
    return Promise.resolve();
  }

  clear(): Promise<void> {
    this.rows.clear();
    return Promise.resolve();
  }
}

function setting(answer?: unknown) {
  const said: unknown[][] = [];
  const note = (name: string) => (...given: unknown[]) => void said.push([name, ...given]);
  const feed: RelayClient = {
    subscribe: note("follow"),
    unsubscribe: note("leave"),
    watchThreads: note("watch"),
    setPresence: note("announce"),
    checkConnection: note("wake"),
    addOlderMessages: note("adoptEarlier"),
    addProgress: note("adoptProgress"),
    changeIdentity: (change) => change(),
  };
  const batches: Batch[] = [];
  const stored = new Shelf();
  const ask: ApiGet = (() => Promise.resolve(answer)) as ApiGet;
  const relay = new Relay({ feed, stored, ask, post: (batch) => batches.push(batch) });
  /** What the page shows, by the batches that it took. */
  const page = () => batches.reduce((shown, { patch }) => (patch ? applyPatch(patch.whole ? EMPTY_THREAD : shown, patch) : shown), EMPTY_THREAD);
  const open = async (threadId = "t", generation = 1, who: string | null = null) => {
    await relay.receive({ type: "leave", generation });
    await relay.receive({ type: "follow", generation, attempt: 1, threadId, keys: {}, who });
    said.length = 0;
  };
  return { relay, batches, stored, said, page, open };
}

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

describe("what changes", () => {
  it("is told at once while the page keeps up, and together while it does not", async () => {
    const { relay, batches, page, open } = setting();
    await open();
    relay.updateThread(state(1, "one"), FRESH);
    for (let revision = 2; revision < 500; revision++) relay.updateThread(state(revision, `one${" more".repeat(revision)}`), FRESH);
    expect(batches).toHaveLength(1);
    await relay.receive({ type: "taken" });
    expect(batches).toHaveLength(2);
    expect(page()).toEqual(state(499, `one${" more".repeat(499)}`));
    await relay.receive({ type: "taken" });
    expect(batches).toHaveLength(2);
  });

  it("of what text grew by travels alone", async () => {
    const { relay, batches, open } = setting();
    await open();
    relay.updateThread(state(1, "one"), FRESH);
    await relay.receive({ type: "taken" });
    relay.updateThread(state(2, "one two"), FRESH);
    expect(batches[1]?.patch?.messages[0]?.blocks).toEqual([{ at: 0, append: " two" }]);
  });

  it("of a reset is told even if more has come since", async () => {
    const { relay, batches, open } = setting();
    await open();
    relay.updateThread(state(1, "one"), FRESH);
    relay.updateThread(state(2, "anew"), { ...FRESH, isSnapshot: true, wasReset: true });
    relay.updateThread(state(3, "anew, again"), FRESH);
    await relay.receive({ type: "taken" });
    expect(batches[1]).toMatchObject({ wasReset: true, patch: { revision: 3 } });
  });

  it("of a thread that was left is not told any more", async () => {
    const { relay, batches, open, page } = setting();
    await open();
    relay.updateThread(state(1, "one"), FRESH);
    relay.updateThread(state(2, "one two"), FRESH);
    await open("u", 2);
    await relay.receive({ type: "taken" });
    relay.updateThread(state(7, "other", "u"), FRESH);
    expect(batches.map(({ generation, patch }) => [generation, patch?.threadId])).toEqual([[1, "t"], [2, "u"]]);
    expect(page()).toEqual(state(7, "other", "u"));
  });

  it("in the list is told by its entries", async () => {
    const { relay, batches } = setting();
    const [one, two] = [listed("one"), listed("two")];
    relay.updateList({ revision: 1, entries: new Map([["one", one], ["two", two]]), hasMore: true, invitations: [] });
    await relay.receive({ type: "taken" });
    const changed = listed("two", "2026-01-02T00:00:00Z");
    relay.updateList({ revision: 2, entries: new Map([["two", changed]]), hasMore: false, invitations: [] });
    expect(batches.map(({ list }) => list)).toEqual([
      { whole: true, revision: 1, entries: [one, two], removed: [], hasMore: true, invitations: [] },
      { whole: false, revision: 2, entries: [changed], removed: ["one"], hasMore: false, invitations: [] },
    ]);
  });
});

describe("a thread that was seen before", () => {
  it("is shown where the server can't be reached, as what it is, until the server tells", async () => {
    const { relay, batches, stored, open, page } = setting();
    await stored.save("t", null, state(5, "kept"));
    await open();
    relay.updateConnection({ phase: "connecting" });
    expect(page()).toEqual(EMPTY_THREAD);
    await relay.receive({ type: "taken" });
    relay.updateConnection({ phase: "waiting", until: 9 });
    expect([page(), batches.at(-1)?.isStale]).toEqual([state(5, "kept"), true]);
    await relay.receive({ type: "taken" });
    relay.updateThread(state(6, "kept, and more"), FRESH);
    expect([page(), batches.at(-1)?.isStale]).toEqual([state(6, "kept, and more"), false]);
  });

  it("is gone on from, and is as it was where the server has nothing to add and it may still be read", async () => {
    const { relay, batches, stored, page } = setting({ revision: 5 });
    await stored.save("t", "user", state(5, "kept"));
    await relay.receive({ type: "follow", generation: 0, attempt: 2, threadId: "t", keys: {}, who: "user" });
    relay.updateConnection({ phase: "live" });
    await relay.receive({ type: "taken" });
    await vi.advanceTimersByTimeAsync(0);
    expect(page()).toEqual(state(5, "kept"));
    expect(batches.at(-1)).not.toHaveProperty("isStale");
  });

  it("is not shown as it was where it has changed, but as the server tells then", async () => {
    const { relay, stored, open, said, page } = setting({ revision: 6 });
    await stored.save("t", null, state(5, "kept"));
    await open();
    relay.updateConnection({ phase: "live" });
    await relay.receive({ type: "taken" });
    await vi.advanceTimersByTimeAsync(1000);
    expect(page()).toEqual(EMPTY_THREAD);
    relay.updateThread(state(6, "kept, and more"), FRESH);
    await vi.advanceTimersByTimeAsync(5000);
    expect(page()).toEqual(state(6, "kept, and more"));
    expect(said).toEqual([]);
  });

  it("is asked for as a whole where it has changed and the server tells nothing of it", async () => {
    const { relay, stored, open, said } = setting({ revision: 6 });
    await stored.save("t", null, state(5, "kept"));
    await open();
    relay.updateConnection({ phase: "live" });
    await vi.advanceTimersByTimeAsync(5000);
    expect(said).toEqual([["leave"], ["follow", "t", {}]]);
  });

  it("is asked for as a whole where it can't be known whether it is as it was", async () => {
    const { relay, stored, open, said, page } = setting(undefined);
    await stored.save("t", null, state(5, "kept"));
    await open();
    relay.updateConnection({ phase: "live" });
    await vi.advanceTimersByTimeAsync(0);
    expect(said).toEqual([["leave"], ["follow", "t", {}]]);
    expect(page()).toEqual(EMPTY_THREAD);
  });

  it("by another account is not shown to this one", async () => {
    const { relay, stored, open, page } = setting();
    await stored.save("t", "somebody", state(5, "kept"));
    await open("t", 1, "somebody else");
    relay.updateConnection({ phase: "waiting" });
    expect(page()).toEqual(EMPTY_THREAD);
  });

  it("is kept while it changes, and when it is left", async () => {
    const { relay, stored, open } = setting();
    await open();
    relay.updateThread(state(1, "one"), FRESH);
    expect(stored.rows.size).toBe(0);
    await vi.advanceTimersByTimeAsync(2000);
    expect(stored.rows.get("t")?.state.revision).toBe(1);
    relay.updateThread(state(2, "two"), FRESH);
    await relay.receive({ type: "leave", generation: 2 });
    expect(stored.rows.get("t")?.state.revision).toBe(2);
  });

  it.each(["forget", "clear"] as const)("is not kept after the page says %s, whatever was about to be", async (type) => {
    const { relay, stored, open } = setting();
    await open();
    relay.updateThread(state(1, "one"), FRESH);
    await relay.receive(type === "clear" ? { type } : { type, threadId: "t" });
    await relay.receive({ type: "leave", generation: 2 });
    await vi.advanceTimersByTimeAsync(10_000);
    expect(stored.rows.size).toBe(0);
  });

  it("is not kept by whom the server refuses", async () => {
    const { relay, batches, stored, open } = setting();
    await stored.save("t", null, state(5, "kept"));
    await open();
    relay.handleRefusal("forbidden", "");
    relay.updateConnection({ phase: "waiting" });
    await relay.receive({ type: "taken" });
    await vi.advanceTimersByTimeAsync(10_000);
    expect(stored.rows.size).toBe(0);
    expect(batches.some(({ patch }) => patch)).toBe(false);
  });

  it("is refused as it was asked for last", async () => {
    const { relay, batches, open } = setting();
    await open();
    relay.handleRefusal("forbidden", "");
    await relay.receive({ type: "follow", generation: 1, attempt: 2, threadId: "t", keys: {}, who: "user" });
    await relay.receive({ type: "taken" });
    relay.handleRefusal("forbidden", "");
    expect(batches.flatMap(({ refusal }) => refusal?.attempt ?? [])).toEqual([1, 2]);
  });

  it("that was taken off the account's list is forgotten", async () => {
    const { relay, stored } = setting();
    await stored.save("one", "user", state(1, "secret", "one"));
    relay.updateList({ revision: 1, entries: new Map([["one", listed("one")]]), hasMore: false, invitations: [] });
    relay.updateList({ revision: 2, entries: new Map(), hasMore: false, invitations: [] });
    expect(stored.rows.size).toBe(0);
  });
});
