import { expect, test } from "vitest";

import { BrowserStorage } from "../browser/browser-storage.ts";
import { ChatsWithoutAgent } from "./chats-without-agent.ts";

test("chats without the agent of their folder are kept for the next visit, the latest 200 of them", () => {
  const storage = new BrowserStorage(() => {
    throw new Error("There is no storage.");
  });
  const chats = new ChatsWithoutAgent(storage);
  for (let count = 1; count <= 201; count++) chats.add(String(count));
  const kept = new ChatsWithoutAgent(storage);
  expect([kept.has("1"), kept.has("2"), kept.has("201")]).toEqual([false, true, true]);
});
