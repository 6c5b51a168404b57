import { describe, expect, test } from "vitest";

import type { ChatListItem } from "../state/page-model.ts";
import { agentsFor, chatsFor, itemsFor, stepIndex } from "./palette-items.ts";

function chat(id: string, title: string, archived = false): ChatListItem {
  return { id, title, role: "owner", accessNote: "", unread: false, running: false, needsApproval: false, changedAt: 0, isAnonymous: false, entry: null, pinned: false, archived, folder: null };
}

const item = (label: string) => ({ id: label, label, run: () => undefined });

describe("chats of the palette", () => {
  const chats = [chat("1", "About trips"), chat("2", "Trips to Shakuras"), chat("3", "Old trips", true), chat("4", "Soup")];

  test("have the words of the query; those that begin with it come first, archived ones last", () => {
    expect(chatsFor(chats, "TRIPS").map(({ id }) => id)).toEqual(["2", "1", "3"]);
    expect(chatsFor(chats, "shakuras trips").map(({ id }) => id)).toEqual(["2"]);
  });

  test("are the first six without a query, and no archived ones", () => {
    expect(chatsFor(chats, " ").map(({ id }) => id)).toEqual(["1", "2", "4"]);
    expect(chatsFor(Array.from({ length: 9 }, (_, at) => chat(String(at), "x")), "")).toHaveLength(6);
  });
});

test("actions are found by any of their words, agents only by a query", () => {
  const items = [item("New chat"), item("Settings"), item("Search messages")];
  expect(itemsFor(items, "").length).toBe(3);
  expect(itemsFor(items, "chat n").map(({ label }) => label)).toEqual(["New chat"]);
  expect(agentsFor(items, "")).toEqual([]);
  expect(agentsFor(items, "sett")).toHaveLength(1);
});

test("the selection goes around at both ends", () => {
  expect([stepIndex(0, -1, 3), stepIndex(2, 1, 3), stepIndex(0, 1, 3), stepIndex(0, 1, 0)]).toEqual([2, 0, 1, -1]);
});
