import { IDBFactory } from "fake-indexeddb";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";

import type { Store } from "./stores.ts";
import { IndexedDbStore, MemoryStore } from "./stores.ts";

interface Kept {
  id: string;
  what: string;
}

beforeEach(() => void vi.stubGlobal("indexedDB", new IDBFactory()));
afterEach(() => void vi.unstubAllGlobals());

const KINDS: [string, () => Store<Kept>][] = [
  ["in memory", () => new MemoryStore()],
  ["in IndexedDB", () => new IndexedDbStore("test")],
];

describe.each(KINDS)("a store %s", (_, make) => {
  test("keeps values by their ids, in order", async () => {
    const store = make();
    for (const id of ["b", "a", "c"]) await store.put({ id, what: `the ${id}` });
    await store.put({ id: "b", what: "new" });
    expect((await store.all()).map(({ what }) => what)).toEqual(["the a", "new", "the c"]);
    expect(await store.get("c")).toEqual({ id: "c", what: "the c" });
    await store.remove("c");
    await store.remove("c");
    expect(await store.get("c")).toBeUndefined();
  });
});

test("what is in IndexedDB is there on the next visit, and in the other tab", async () => {
  await new IndexedDbStore<Kept>("test").put({ id: "a", what: "kept" });
  expect(await new IndexedDbStore<Kept>("test").all()).toEqual([{ id: "a", what: "kept" }]);
  expect(await new IndexedDbStore<Kept>("other").all()).toEqual([]);
});

test("a database that goes away is opened again", async () => {
  const store = new IndexedDbStore<Kept>("test");
  await store.put({ id: "a", what: "x" });
  await new Promise((resolve, reject) => {
    const request = indexedDB.deleteDatabase("test");
    request.onsuccess = resolve;
    request.onblocked = reject;
  });
  expect(await store.all()).toEqual([]);
});

test("a value that can't be kept is refused, and the store goes on", async () => {
  const store = new IndexedDbStore<{ id: string; what: unknown }>("test");
  await expect(store.put({ id: "a", what: () => undefined })).rejects.toThrow();
  await store.put({ id: "b", what: 1 });
  expect(await store.all()).toHaveLength(1);
});

test("a browser without a database is told of, each time", async () => {
  const broken = { open: () => { throw new Error("Not here."); } }; // prettier-ignore
  vi.stubGlobal("indexedDB", broken);
  const store = new IndexedDbStore<Kept>("test");
  await expect(store.all()).rejects.toThrow("Not here.");
  vi.stubGlobal("indexedDB", new IDBFactory());
  expect(await store.all()).toEqual([]);
});
