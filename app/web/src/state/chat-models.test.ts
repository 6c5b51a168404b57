import { expect, test } from "vitest";

import { BrowserStorage } from "../browser/browser-storage.ts";
import { ChatModels } from "./chat-models.svelte.ts";

function memory(): BrowserStorage {
  const kept = new Map<string, string>();
  return new BrowserStorage(() => ({ getItem: (name) => kept.get(name) ?? null, setItem: (name, value) => void kept.set(name, value), removeItem: (name) => void kept.delete(name) }));
}

test("a choice belongs to one chat, survives a reload and can be taken back", () => {
  const storage = memory();
  const models = new ChatModels(storage);
  models.choose("a", "openai:gpt-5");
  expect(models.of("b")).toBeNull();
  expect(new ChatModels(storage).of("a")).toBe("openai:gpt-5");
  models.choose("a", null);
  expect(new ChatModels(storage).of("a")).toBeNull();
});

test("a choice of another tab is kept", () => {
  const storage = memory();
  const [one, other] = [new ChatModels(storage), new ChatModels(storage)];
  one.choose("a", "demo");
  other.choose("b", "demo");
  one.reload();
  expect([one.of("a"), one.of("b")]).toEqual(["demo", "demo"]);
});

test("the number of choices is bounded, and invalid stored values are ignored", () => {
  const storage = memory();
  storage.write("khala.models", [["a", 1], "b", ["c"], ["d", "demo"]]);
  const models = new ChatModels(storage);
  expect(["a", "b", "c", "d"].map((id) => models.of(id))).toEqual([null, null, null, "demo"]);
  for (let index = 0; index < 200; index++) models.choose(`chat ${index}`, "demo");
  expect(models.of("d")).toBeNull();
  expect(models.of("chat 0")).toBe("demo");
});
