import { expect, test } from "vitest";

import { BrowserStorage } from "../browser/browser-storage.ts";
import { StoredChats } from "./stored-chats.ts";

test("the chats of a set are kept for the next visit, the latest 200 of them, and are in no other set", () => {
  const storage = new BrowserStorage(() => {
    throw new Error("There is no storage.");
  });
  const chats = new StoredChats("one", storage);
  for (let count = 1; count <= 201; count++) chats.add(String(count));
  const kept = new StoredChats("one", storage);
  expect([kept.has("1"), kept.has("2"), kept.has("201")]).toEqual([false, true, true]);
  expect(new StoredChats("other", storage).has("2")).toBe(false);
});
