import { IDBFactory } from "fake-indexeddb";
import { expect, it, vi } from "vitest";

import type { MessageState, ThreadState } from "@khala/client";
import { SnapshotStore, serializeWithin } from "../workers/stream.snapshots.ts";

function state(count: number, words = "word"): ThreadState {
  const time = "2026-01-01T00:00:00Z";
  const message = (at: number): MessageState => ({ id: `m${at}`, threadId: "t", role: "user", status: "final", seq: 0, content: [{ type: "text", text: words }], createdAt: time, updatedAt: time });
  const thread = { id: "t", visibility: "private" as const, revision: 1, createdAt: time, updatedAt: time };
  return { revision: 1, thread, messages: Array.from({ length: count }, (_, at) => message(at)), hasMore: false, plans: [] };
}

it("a thread is found as it was kept, by whom it was kept for", async () => {
  const factory = new IDBFactory();
  await new SnapshotStore(factory).save("t", "user", state(3), 1);
  const found = new SnapshotStore(factory);
  expect(await found.load("t", "user")).toEqual(state(3));
  expect(await found.load("t", null)).toBeNull();
  expect(await found.load("u", "user")).toBeNull();
});

it("only the twenty threads used last are kept", async () => {
  const kept = new SnapshotStore(new IDBFactory());
  for (let at = 0; at < 25; at++) await kept.save(`t${at}`, null, state(1), at);
  const found = await Promise.all(Array.from({ length: 25 }, (_, at) => kept.load(`t${at}`, null)));
  expect(found.map((one) => one !== null)).toEqual([...Array<boolean>(5).fill(false), ...Array<boolean>(20).fill(true)]);
});

it("what is forgotten is gone", async () => {
  const kept = new SnapshotStore(new IDBFactory());
  await kept.save("one", null, state(1), 1);
  await kept.save("two", null, state(1), 2);
  await kept.forget("one");
  expect([await kept.load("one", null), await kept.load("two", null)]).toEqual([null, state(1)]);
  await kept.clear();
  expect(await kept.load("two", null)).toBeNull();
});

it("of a long thread the end is kept, which fits, and says that there is more", () => {
  const text = serializeWithin(state(100, "x".repeat(1000)), 50_000);
  const found = JSON.parse(text ?? "null") as ThreadState;
  expect(text?.length).toBeLessThanOrEqual(50_000);
  expect(found.hasMore).toBe(true);
  expect(found.messages.at(-1)?.id).toBe("m99");
  expect(serializeWithin(state(100, "x".repeat(100_000)), 50_000)).toBeNull();
});

it("a browser without a store has nothing, says so once, and that is all", async () => {
  const said = vi.spyOn(console, "info").mockReturnValue();
  const kept = new SnapshotStore(undefined);
  const broken = new SnapshotStore({ open: () => { throw new Error("never"); } } as unknown as IDBFactory);
  await kept.save("t", null, state(1), 1);
  expect(await kept.load("t", null)).toBeNull();
  for (let tries = 0; tries < 2; tries++) expect(await broken.load("t", null)).toBeNull();
  expect(said).toHaveBeenCalledOnce();
  said.mockRestore();
});
