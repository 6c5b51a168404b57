import { describe, expect, test, vi } from "vitest";

import type { ChatListItem } from "../state/page-model.ts";
import { chatTitle } from "./chat-rows.ts";
import { agentsFor, bestFirst, chatsFor, itemsFor, matchRank, stepIndex } from "./palette-items.ts";

function chat(id: string, title: string, archived = false): ChatListItem {
  return { id, title, role: "owner", accessNote: "", unread: false, running: false, needsApproval: false, changedAt: 0, isAnonymous: false, entry: null, pinned: false, archived, folder: null, isEmpty: false };
}

const item = (label: string) => ({ id: label, label, icon: "", run: () => undefined });

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

  test("are all that have the words of a query", () => {
    expect(chatsFor(Array.from({ length: 300 }, (_, at) => chat(String(at), "x", at % 2 === 1)), "x")).toHaveLength(300);
  });

  test("are each compared with the query a few times, however many there are", () => {
    const normalize = vi.spyOn(String.prototype, "normalize");
    expect(chatsFor(Array.from({ length: 1000 }, (_, at) => chat(String(at), `${at % 7} trips`)), "trips")).toHaveLength(1000);
    expect(normalize.mock.calls.length).toBeLessThanOrEqual(4000);
    normalize.mockRestore();
  });

  test("have all words in any order and case, without regard to accents", () => {
    const all = [chat("1", "Größe der Tabelle"), chat("2", "A haiku about Postgres")];
    const found = (query: string): string[] => chatsFor(all, query).map(({ id }) => id);
    expect(found("POSTGRES haiku")).toEqual(["2"]);
    expect(found("grosse")).toEqual([]);
    expect(found("große")).toEqual(["1"]);
    expect(found("GROẞE tabel")).toEqual(["1"]);
  });

  test("without a name are found by what they are called", () => {
    expect(chatTitle(chat("3", ""))).toBe("New chat");
    expect(chatsFor([chat("3", "")], "new ch").map(({ id }) => id)).toEqual(["3"]);
  });
});

test("actions are found by any of their words, agents only by a query", () => {
  const items = [item("New chat"), item("Settings"), item("Search messages")];
  expect(itemsFor(items, "").length).toBe(3);
  expect(itemsFor(items, "chat n").map(({ label }) => label)).toEqual(["New chat"]);
  expect(agentsFor(items, "")).toEqual([]);
  expect(agentsFor(items, "sett")).toHaveLength(1);
});

test("the best match comes first: equal, at the start, at the start of a word, inside", () => {
  const labels = ["Reset…", "Preset", "A set of things", "Settings", "Set"];
  expect(itemsFor(labels.map(item), "set").map(({ label }) => label)).toEqual(["Set", "Settings", "A set of things", "Reset…", "Preset"]);
  expect([matchRank("Élan vital", "elan"), matchRank("Über (neu)", "neu"), matchRank("x", "")]).toEqual([1, 2, 0]);
});

test("the group with the best match comes first, those that are found by their text last, and empty ones not at all", () => {
  const groups = [
    { id: "messages", heading: "", items: [item("set")], isFoundByText: true },
    { id: "chats", heading: "", items: [item("Sunset")] },
    { id: "actions", heading: "", items: [item("Reset"), item("Settings")] },
    { id: "agents", heading: "", items: [] },
  ];
  expect(bestFirst(groups, "set").map(({ id }) => id)).toEqual(["actions", "chats", "messages"]);
  const more = { ...item("Set them all"), stays: true };
  expect(bestFirst([{ id: "chats", heading: "", items: [item("Sunset"), more] }, { id: "actions", heading: "", items: [item("Settings")] }], "set").map(({ id }) => id)).toEqual(["actions", "chats"]);
  expect(bestFirst(groups, " ").map(({ id }) => id)).toEqual(["messages", "chats", "actions"]);
});

test("the selection goes around at both ends", () => {
  expect([stepIndex(0, -1, 3), stepIndex(2, 1, 3), stepIndex(0, 1, 3), stepIndex(0, 1, 0)]).toEqual([2, 0, 1, -1]);
});
