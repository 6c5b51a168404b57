import { expect, test } from "vitest";
import { LruCache } from "./lru-cache.ts";

test("what was used longest ago goes first", () => {
  const cache = new LruCache<string, number>(2);
  cache.set("a", 1);
  cache.set("b", 2);
  expect(cache.get("a")).toBe(1);
  cache.set("c", 3);
  expect([cache.get("a"), cache.get("b"), cache.get("c")]).toEqual([1, undefined, 3]);
});

test("values together weigh no more than is allowed, and one that is too heavy is not kept at all", () => {
  const cache = new LruCache<string, number>(10, 10);
  cache.set("a", 1, 6);
  cache.set("b", 2, 4);
  cache.set("c", 3, 5);
  expect([cache.get("a"), cache.get("b"), cache.get("c")]).toEqual([undefined, 2, 3]);
  cache.set("c", 4, 11);
  expect([cache.get("b"), cache.get("c"), cache.size]).toEqual([2, undefined, 1]);
  cache.set("d", 5, 6);
  expect(cache.size).toBe(2);
});

test("to set a value again takes its new weight, and to take all out leaves room for all", () => {
  const cache = new LruCache<string, number>(3, 10);
  cache.set("a", 1, 9);
  cache.set("a", 2, 1);
  cache.set("b", 3, 9);
  expect([cache.get("a"), cache.get("b")]).toEqual([2, 3]);
  cache.clear();
  cache.set("c", 4, 10);
  expect([cache.size, cache.get("c")]).toEqual([1, 4]);
});
