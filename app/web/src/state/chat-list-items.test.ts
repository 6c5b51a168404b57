import { describe, expect, it } from "vitest";

import type { ThreadListEntry } from "@khala/client";
import { mergeChats, applyListPatch } from "./chat-list-items.ts";

function entry(id: string, day: number, changes: Partial<ThreadListEntry> = {}): ThreadListEntry {
  const time = `2026-01-0${day}T00:00:00Z`;
  const thread = { id, title: `Title of ${id}`, visibility: "private" as const, revision: 1, createdAt: time, updatedAt: time };
  return { thread, role: "owner", unread: false, running: false, needsApproval: false, changedAt: time, ...changes };
}

const NOBODY = { userId: null, openId: null, openTitle: null };

describe("the list", () => {
  it("has the account's chats and this browser's, those used last first, each once", () => {
    const own = [
      { id: "mine", title: "Mine", created: true, usedAt: Date.parse("2026-01-02T00:00:00Z"), key: "k" },
      { id: "both", title: "As it was called here", created: true, usedAt: 0, key: "k" },
    ];
    const items = mergeChats([entry("both", 1), entry("newest", 3)], own, { ...NOBODY, userId: "user" });
    expect(items.map(({ id, title, accessNote: note }) => [id, title, note])).toEqual([
      ["newest", "Title of newest", ""],
      ["mine", "Mine", "Only in this browser"],
      ["both", "Title of both", ""],
    ]);
  });

  it("keeps the folder of a new chat until the server has put the chat into it", () => {
    const own = [{ id: "new", title: null, created: true, ownerId: "user", folder: "Travel" }];
    const folders = (entries: ThreadListEntry[], userId: string) => mergeChats(entries, own, { ...NOBODY, userId }).map(({ folder }) => folder);
    expect(folders([entry("new", 1)], "user")).toEqual(["Travel"]);
    expect(folders([entry("new", 1, { folder: "Elsewhere" })], "user")).toEqual(["Elsewhere"]);
    expect(folders([entry("new", 1)], "another")).toEqual([null]);
  });

  it("says what waits for a person", () => {
    const items = mergeChats([entry("call", 3, { needsApproval: true }), entry("plan", 2, { planWaits: true }), entry("quiet", 1)], [], NOBODY);
    expect(items.map(({ id, needsApproval, planWaits }) => [id, needsApproval, planWaits])).toEqual([
      ["call", true, false],
      ["plan", false, true],
      ["quiet", false, false],
    ]);
  });

  it("says how one has come by a chat", () => {
    const own = [{ id: "link", title: null, created: true, shareKey: "s" }, { id: "mine", title: null, created: true, key: "k" }];
    const notes = (userId: string | null) => mergeChats([entry("shared", 1, { role: "editor" })], own, { ...NOBODY, userId }).map(({ id, accessNote: note }) => [id, note]);
    expect(notes("user")).toEqual([["shared", "Shared with you"], ["link", "Shared with you"], ["mine", "Only in this browser"]]);
    expect(notes(null)).toEqual([["shared", "Shared with you"], ["link", "Shared with you"], ["mine", ""]]);
  });

  it("knows which chats have nothing in them", () => {
    const nameless = (id: string, changes: Partial<ThreadListEntry["thread"]> = {}, of: Partial<ThreadListEntry> = {}) => {
      const { visibility, createdAt, updatedAt } = entry(id, 1).thread;
      return entry(id, 1, { thread: { id, visibility, revision: 4, createdAt, updatedAt, ...changes }, ...of });
    };
    const untouched = [
      nameless("welcome only", { revision: 1 }),
      nameless("welcome only, by a link", { revision: 1, visibility: "link" }),
      nameless("welcome only, of somebody else", { revision: 1 }, { role: "editor" }),
      nameless("welcome only, pinned", { revision: 1 }, { pinned: true }),
    ];
    const own = [
      { id: "unused", title: null, created: true, key: "k", unused: true },
      { id: "uncreated", title: null, created: false, key: "k" },
      { id: "unknown", title: null, created: true, key: "k" },
      { id: "named", title: "A title", created: true, key: "k", unused: true },
      { id: "filed", title: null, created: true, key: "k", unused: true, folder: "Work" },
      { id: "link", title: null, created: true, shareKey: "s", unused: true },
    ];
    const emptyOf = (open: Partial<Parameters<typeof mergeChats>[2]> = {}) =>
      mergeChats([nameless("new"), nameless("shared"), ...untouched], own, { ...NOBODY, ...open }).filter(({ isEmpty }) => isEmpty).map(({ id }) => id).sort();
    expect(emptyOf()).toEqual(["filed", "uncreated", "unused", "welcome only"]);
    expect(emptyOf({ openId: "new", isOpenUnused: true })).toEqual(["filed", "new", "uncreated", "unused", "welcome only"]);
    expect(emptyOf({ openId: "new", isOpenUnused: true, openTitle: "First words" })).toEqual(["filed", "uncreated", "unused", "welcome only"]);
  });

  it("does not take a chat for empty that others are invited to, or that has a title and no messages", () => {
    const { id, visibility, revision, createdAt, updatedAt } = entry("nameless", 1).thread;
    const nameless = entry("nameless", 1, { thread: { id, visibility, revision, createdAt, updatedAt } });
    const emptyOf = (hasMembers: (id: string) => boolean) =>
      mergeChats([nameless, entry("titled", 1)], [], { ...NOBODY, openId: "nameless", isOpenUnused: true, hasMembers }).filter(({ isEmpty }) => isEmpty).map((item) => item.id);
    expect(emptyOf(() => false)).toEqual(["nameless"]);
    expect(emptyOf((one) => one === "nameless")).toEqual([]);
  });

  it("leaves out what was begun for another account", () => {
    const own = [{ id: "theirs", title: null, created: false, ownerId: "them" }, { id: "ours", title: null, created: false, ownerId: "us" }];
    expect(mergeChats([], own, { ...NOBODY, userId: "us" }).map(({ id }) => id)).toEqual(["ours"]);
    expect(mergeChats([], own, NOBODY)).toEqual([]);
  });

  it("calls the open chat as the page does where it has no name, and never calls it unread", () => {
    const { id, visibility, revision, createdAt, updatedAt } = entry("open", 1).thread;
    const nameless = { id, visibility, revision, createdAt, updatedAt };
    const [open, other] = mergeChats([{ ...entry("open", 2, { unread: true }), thread: nameless }, entry("other", 1, { unread: true })].reverse(), [], { userId: "us", openId: "open", openTitle: "First words" });
    expect([open, other].map((item) => [item?.id, item?.title, item?.unread]).sort()).toEqual([["open", "First words", false], ["other", "Title of other", true]]);
    expect(mergeChats([{ ...entry("open", 2), thread: nameless }], [], NOBODY)[0]?.title).toBe("New chat");
  });
});

it("changes of the list take the place of what they name, and whole ones of all", () => {
  const before = new Map([["one", entry("one", 1)], ["two", entry("two", 2)]]);
  const rest = { revision: 2, hasMore: false, invitations: [] };
  expect([...applyListPatch(before, { whole: false, entries: [entry("three", 3)], removed: ["one"], ...rest }).keys()]).toEqual(["two", "three"]);
  expect([...applyListPatch(before, { whole: true, entries: [entry("three", 3)], removed: [], ...rest }).keys()]).toEqual(["three"]);
});
