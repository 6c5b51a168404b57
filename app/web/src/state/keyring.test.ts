import { describe, expect, it } from "vitest";

import { Keyring, keysOf } from "./keyring.ts";
import { BrowserStorage } from "../browser/browser-storage.ts";
import type { StorageLike } from "../browser/browser-storage.ts";

function storage(): StorageLike & Record<string, unknown> {
  const found: Record<string, unknown> = {};
  return Object.defineProperties(found, {
    getItem: { value: (name: string) => found[name] ?? null },
    setItem: { value: (name: string, text: string) => (found[name] = text) },
    removeItem: { value: (name: string) => Reflect.deleteProperty(found, name) },
  }) as StorageLike & Record<string, unknown>;
}

function keyring(kept = new BrowserStorage(storage)): { keys: Keyring; changes: () => number } {
  let changes = 0;
  let time = 1000;
  return { keys: new Keyring(kept, () => changes++, () => time++), changes: () => changes };
}

function ring(texts = storage()): Keyring {
  return keyring(new BrowserStorage(() => texts)).keys;
}

describe("the chats of a browser", () => {
  it("are remembered under names that stay, in one entry each", () => {
    const texts = storage();
    const chat = ring(texts).add();
    expect(Object.keys(texts)).toEqual([`khala.chat.${chat.id}`]);
    expect(chat.key).toMatch(/^[0-9a-f]{64}$/);
    expect(ring(texts).find(chat.id)).toEqual(chat);
  });

  it("are listed, the one used last first", () => {
    const keys = ring();
    const [first, second] = [keys.add(), keys.add()];
    expect(keys.all().map(({ id }) => id)).toEqual([second.id, first.id]);
    keys.update(first, { usedAt: 5000 });
    expect(keys.all().map(({ id }) => id)).toEqual([first.id, second.id]);
  });

  it("are changed from what another tab has written, not from what was read before", () => {
    const texts = storage();
    const [here, there] = [ring(texts), ring(texts)];
    const chat = here.add();
    there.update(chat, { created: true });
    expect(here.update(chat, { title: "Plans" })).toMatchObject({ created: true, title: "Plans" });
  });

  it("of an account need no key once they are made", () => {
    const keys = ring();
    const chat = keys.add("user");
    expect(chat.key).toBeUndefined();
    expect(keys.markCreated(chat, { thread: { ownerId: "user" } })).toEqual({ id: chat.id, title: null, created: true });
    expect(keys.all()).toEqual([]);
  });

  it("that are temporary are on no list, are not claimed, and stay known by their id", () => {
    const keys = ring();
    const [guests, accounts] = [keys.addTemporary(), keys.addTemporary("user")];
    keys.markCreated(guests, { thread: {} });
    expect(keys.markCreated(accounts, { thread: { ownerId: "user" } })).toEqual({ id: accounts.id, title: null, created: true, usedAt: 1003, temporary: true });
    expect([keys.all(), keys.claimable(), keys.findUncreated()]).toEqual([[], [], null]);
    expect(keys.find(guests.id)).toMatchObject({ key: guests.key, temporary: true });
  });

  it("that are temporary are forgotten once the server has deleted them", () => {
    let now = 0;
    const texts = storage();
    const keys = new Keyring(new BrowserStorage(() => texts), () => undefined, () => now);
    const [usual, early] = [keys.add(), keys.addTemporary()];
    now = 47 * 3600 * 1000;
    const late = keys.addTemporary();
    expect(keys.find(early.id)).not.toBeNull();
    now = 49 * 3600 * 1000;
    keys.addTemporary();
    expect([usual, early, late].map(({ id }) => keys.find(id) !== null)).toEqual([true, false, true]);
  });

  it("that were made while nobody was signed in are opened by the key that the server made", () => {
    const keys = ring();
    const made = keys.markCreated(keys.add("user"), { thread: {}, anonKey: "k" });
    expect(made).toMatchObject({ created: true, key: "k" });
    expect(made).not.toHaveProperty("ownerId");
  });

  it("are anonymous only with a key of their own, and once they are made", () => {
    const keys = ring();
    keys.add();
    keys.addShared("shared", "s");
    const mine = keys.update(keys.add(), { created: true });
    expect(keys.claimable()).toEqual([mine]);
    expect(keysOf(keys.known("shared"))).toEqual({ shareKey: "s" });
  });

  it("are forgotten with all that could tell of them", () => {
    const texts = storage();
    const keys = ring(texts);
    const { id } = keys.add();
    keys.identityIn(id);
    keys.setLast(id);
    keys.forget(id);
    expect(Object.keys(texts)).toEqual([]);
  });

  it("work where the browser refuses a storage", () => {
    const { keys, changes } = keyring(new BrowserStorage(() => { throw new Error("refused"); }));
    const chat = keys.add();
    expect(keys.find(chat.id)).toEqual(chat);
    expect(keys.all()).toEqual([chat]);
    expect(changes()).toBe(1);
  });
});

it("what was written by us is known when it comes back, and by whom", () => {
  const keys = ring();
  keys.recordSent("chat", "m1");
  keys.recordSent("chat", "m2");
  expect(keys.recordAuthors("chat", [{ id: "other", authorId: "them" }])).toBe(false);
  expect(keys.recordAuthors("chat", [{ id: "m1", authorId: "us" }])).toBe(true);
  expect(keys.identityIn("chat")).toMatchObject({ authors: ["us"], sent: ["m2"] });
});
