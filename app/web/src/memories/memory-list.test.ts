import { expect, test } from "vitest";

import type { Memory, Page } from "@khala/client";
import { MemoryList, type Send } from "./memory-list.svelte.ts";
import { listQuery } from "./memory-query.ts";

const memory = (id: string): Memory => ({ id, scope: "user", kind: "fact", text: id, createdAt: "2026-03-12T12:00:00Z", uses: 0 });
const ACCOUNT = { threadId: "t", isGuest: false };
const GUEST = { threadId: "t", isGuest: true };

/** A server whose answers are given one by one, in any order. */
function server(): { send: Send; asked: string[]; answer: (at: number, page: Page<Memory>) => void } {
  const asked: string[] = [];
  const answers: ((page: Page<Memory>) => void)[] = [];
  const send: Send = <T>(_: string, path: string) => {
    asked.push(path.replace("/api/memories?", ""));
    return new Promise<T>((resolve) => answers.push((page) => resolve(page as T)));
  };
  return { send, asked, answer: (at, page) => answers[at]?.(page) };
}

test("a guest's memories are reached through the chat, those of an account are not", () => {
  expect(listQuery("all", ACCOUNT)).toBe("");
  expect(listQuery("agent", ACCOUNT)).toBe("scope=agent");
  expect(listQuery("thread", ACCOUNT)).toBe("scope=thread&threadId=t");
  expect(listQuery("all", GUEST)).toBe("scope=user&threadId=t");
  expect(listQuery("thread", GUEST, { limit: "50" })).toBe("scope=thread&threadId=t&limit=50");
});

test("pages follow each other, and a search has one", async () => {
  const { send, asked, answer } = server();
  const list = new MemoryList(send);
  const first = list.load("all", ACCOUNT, " ");
  answer(0, { items: [memory("c")], nextCursor: "c" });
  await first;
  const second = list.loadMore("all", ACCOUNT);
  void list.loadMore("all", ACCOUNT);
  answer(1, { items: [memory("b")] });
  await second;
  await list.loadMore("all", ACCOUNT);
  expect(list.items?.map(({ id }) => id)).toEqual(["c", "b"]);
  void list.load("all", ACCOUNT, " cats ");
  expect(asked).toEqual(["limit=50", "limit=50&cursor=c", "q=cats"]);
});

test("a late answer does not replace that of a newer query", async () => {
  const { send, answer } = server();
  const list = new MemoryList(send);
  const older = list.load("all", ACCOUNT, "c");
  const newer = list.load("all", ACCOUNT, "cats");
  answer(1, { items: [memory("cats")] });
  await newer;
  answer(0, { items: [memory("c")] });
  await older;
  expect(list.items?.map(({ id }) => id)).toEqual(["cats"]);
});

test("a corrected memory keeps its place, and a forgotten one is gone", async () => {
  const { send, answer } = server();
  const list = new MemoryList(send);
  const loaded = list.load("all", ACCOUNT, "");
  answer(0, { items: [memory("b"), memory("a")] });
  await loaded;
  list.replace("b", memory("c"));
  list.remove("a");
  expect(list.items?.map(({ id }) => id)).toEqual(["c"]);
});

test("an export has all pages", async () => {
  const { send, asked, answer } = server();
  const all = new MemoryList(send).all("thread", ACCOUNT);
  answer(0, { items: [memory("b")], nextCursor: "b" });
  await new Promise((resolve) => setTimeout(resolve));
  answer(1, { items: [memory("a")] });
  expect((await all).map(({ id }) => id)).toEqual(["b", "a"]);
  expect(asked[1]).toBe("scope=thread&threadId=t&limit=200&cursor=b");
});
