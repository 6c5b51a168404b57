import { expect, test } from "vitest";

import type { ChatListItem } from "../state/page-model.ts";
import { chatActions, exportName } from "./chat-menu.ts";

const CHAT: ChatListItem = { id: "1", title: "Plans", role: "owner", accessNote: "", unread: false, running: false, needsApproval: false, changedAt: 0, isAnonymous: true, entry: null, pinned: false, archived: false, folder: null, isEmpty: false };
const FACTS = { isListed: true, isOpen: true, hasQuestions: true, isStored: true };

test("an owner may do everything with the open chat", () => {
  expect(chatActions(CHAT, FACTS)).toEqual([["rename", "pin", "folder", "archive"], ["chatSettings", "markdown", "json", "print"], ["reset", "delete"]]);
  expect(chatActions({ ...CHAT, pinned: true, archived: true }, FACTS)[0]).toEqual(["rename", "unpin", "folder", "unarchive"]);
});

test("a chat that is not open, or has no question, is not reset", () => {
  expect(chatActions(CHAT, { ...FACTS, isOpen: false }).at(-1)).toEqual(["delete"]);
  expect(chatActions(CHAT, { ...FACTS, hasQuestions: false }).at(-1)).toEqual(["delete"]);
});

test("a viewer keeps it where they like, exports it and removes it from the list", () => {
  expect(chatActions({ ...CHAT, role: "viewer" }, FACTS)).toEqual([["pin", "folder", "archive"], ["markdown", "json", "print"], ["leave"]]);
});

test("a chat that is on no list is only exported", () => {
  expect(chatActions({ ...CHAT, role: "viewer" }, { ...FACTS, isListed: false })).toEqual([["markdown", "json", "print"]]);
});

test("a chat that the server does not have yet is only removed", () => {
  expect(chatActions(CHAT, { ...FACTS, hasQuestions: false, isStored: false })).toEqual([["delete"]]);
});

test.each([["Trip: a/b?", "Trip a b.md"], ["  ", "chat.md"], ["...hidden", "hidden.md"], ["🙂".repeat(99), `${"🙂".repeat(80)}.md`]])("the file of %j is %j", (title, name) => {
  expect(exportName(title, "markdown")).toBe(name);
});
