import { describe, expect, test } from "vitest";

import type { ChatListItem } from "../state/page-model.ts";
import { arrangeRows, chatsOf, folderNames, groupByTime, periodLabel, startOfDay, keepOrder } from "./chat-rows.ts";

const NOW = new Date(2026, 10, 21, 11, 5).getTime();
const HOUR = 3_600_000;

function chat(id: string, title = id, changedAt = NOW): ChatListItem {
  return { id, title, role: "owner", accessNote: "", unread: false, running: false, needsApproval: false, changedAt, isAnonymous: false, entry: null, pinned: false, archived: false, folder: null, isEmpty: false };
}

describe("days", () => {
  test("begin at midnight by the clock on the wall", () => {
    expect(periodLabel(startOfDay(NOW), NOW)).toBe("Today");
    expect(periodLabel(startOfDay(NOW) - 1, NOW)).toBe("Yesterday");
    expect(periodLabel(startOfDay(NOW, 1), NOW)).toBe("Yesterday");
    expect(periodLabel(startOfDay(NOW, 1) - 1, NOW)).toBe("Last 7 days");
  });

  test("that are further back are the last 7 and 30 days, then a month, then a year", () => {
    const labels = [startOfDay(NOW, 7), startOfDay(NOW, 7) - 1, startOfDay(NOW, 30), startOfDay(NOW, 30) - 1, new Date(2026, 0, 1).getTime(), new Date(2026, 0, 1).getTime() - 1];
    expect(labels.map((time) => periodLabel(time, NOW))).toEqual(["Last 7 days", "Last 30 days", "Last 30 days", "October", "January", "2025"]);
  });

  test("name what comes after a clock that is ahead today", () => {
    expect(periodLabel(NOW + 48 * HOUR, NOW)).toBe("Today");
  });

  test("head their chats once each, also where the order is not by time", () => {
    const lines = groupByTime([chat("a"), chat("b", "b", NOW - 24 * HOUR), chat("c"), chat("d", "d", NOW - 240 * HOUR)], NOW);
    expect(lines.map((line) => (line.kind === "heading" ? line.text : line.chat.id))).toEqual(["Today", "a", "Yesterday", "b", "c", "Last 30 days", "d"]);
  });
});

test("a list that is held still moves nothing, shows what has changed, and drops what is gone", () => {
  const held = groupByTime([chat("a"), chat("b"), chat("c", "c", NOW - 24 * HOUR)], NOW);
  const lines = keepOrder(held, [chat("new"), chat("c", "C"), chat("a", "A")]);
  expect(lines.map((line) => (line.kind === "heading" ? line.text : line.chat.title))).toEqual(["Today", "A", "Yesterday", "C"]);
});

describe("the sections", () => {
  const words = (rows: ReturnType<typeof arrangeRows>): string[] => rows.map((row) => (row.kind === "heading" ? `# ${row.text}` : row.chat.id));
  const chats = [chat("a"), { ...chat("b"), folder: "Work 10" }, { ...chat("c"), pinned: true, folder: "Work 10" }, { ...chat("d"), folder: "work 9" }, { ...chat("e"), folder: "Today" }];

  test("are pinned chats, then folders by name, then days; a pinned chat is in no other section", () => {
    expect(words(arrangeRows(chats, NOW))).toEqual(["# Pinned", "c", "# Folders", "# Today", "e", "# work 9", "d", "# Work 10", "b", "# Today", "a"]);
    const keys = arrangeRows(chats, NOW).map((row) => (row.kind === "heading" ? row.key : row.chat.id));
    expect(new Set(keys).size).toBe(keys.length);
  });

  test("hide the chats of a closed folder, and count them", () => {
    const rows = arrangeRows(chats, NOW, new Set(["Work 10"]));
    expect(words(rows)).not.toContain("b");
    expect(rows.flatMap((row) => (row.kind === "heading" && row.folder ? [[row.text, row.folder.count, row.folder.isClosed]] : []))).toEqual([["Today", 1, false], ["work 9", 1, false], ["Work 10", 1, true]]);
  });

  test("have an empty folder that was made, once and at its place", () => {
    const rows = arrangeRows(chats, NOW, new Set(), [{ name: "Work 9½" }, { name: "Today" }]);
    expect(rows.flatMap((row) => (row.kind === "heading" && row.folder ? [[row.text, row.folder.count]] : []))).toEqual([["Today", 1], ["work 9", 1], ["Work 9½", 0], ["Work 10", 1]]);
    expect(arrangeRows([], NOW, new Set(["Trips"]), [{ name: "Trips" }]).slice(1)).toEqual([{ kind: "heading", key: "folder Trips", text: "Trips", folder: { name: "Trips", count: 0, isClosed: true } }]);
  });

  test("have the heading of the folders only where there is a folder", () => {
    const heading = { kind: "heading", key: "folders", text: "Folders", hasNew: true };
    expect(arrangeRows([], NOW, new Set(), [{ name: "Trips" }])[0]).toEqual(heading);
    expect(arrangeRows(chats, NOW)).toContainEqual(heading);
    expect(words(arrangeRows([chat("a")], NOW))).toEqual(["# Today", "a"]);
  });

  test("are of the chats that are archived, or of the others", () => {
    const all = [...chats, { ...chat("f"), archived: true }];
    expect(chatsOf(all, { archived: true }).map(({ id }) => id)).toEqual(["f"]);
    expect(chatsOf(all, { archived: false })).toEqual(chats);
    expect(folderNames(all)).toEqual(["Today", "work 9", "Work 10"]);
  });
});

test("a chat without anything in it is listed only with a draft", () => {
  const chats = [{ ...chat("empty"), isEmpty: true }, { ...chat("begun"), isEmpty: true }, chat("used")];
  expect(chatsOf(chats, { archived: false }).map(({ id }) => id)).toEqual(["used"]);
  expect(chatsOf(chats, { archived: false, hasDraft: (id) => id === "begun" }).map(({ id }) => id)).toEqual(["begun", "used"]);
});
