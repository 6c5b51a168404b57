// What the menu of a chat offers.

import type { ChatListItem } from "../state/page-model.ts";

export type ChatAction = "rename" | "pin" | "unpin" | "folder" | "archive" | "unarchive" | "chatSettings" | "markdown" | "json" | "print" | "reset" | "delete" | "leave";

/** What is known of the chat besides its item. */
export type ChatFacts = { isListed: boolean; isOpen: boolean; hasQuestions: boolean; isStored: boolean };

/** The actions in their groups, in the order of the menu. Groups without actions are left out. */
export function chatActions({ role, entry, pinned, archived }: ChatListItem, { isListed, isOpen, hasQuestions, isStored }: ChatFacts): ChatAction[][] {
  const isOwner = role === "owner";
  const name: ChatAction[] = isStored && (isOwner || (role === "editor" && entry !== null)) ? ["rename"] : [];
  const place: ChatAction[] = isListed && isStored ? [pinned ? "unpin" : "pin", "folder", archived ? "unarchive" : "archive"] : [];
  const settings: ChatAction[] = isOpen && isStored && role !== "viewer" ? ["chatSettings"] : [];
  const copies: ChatAction[] = isStored ? ["markdown", "json", "print"] : [];
  const reset: ChatAction[] = isOwner && isOpen && hasQuestions ? ["reset"] : [];
  const end: ChatAction[] = isOwner ? ["delete"] : isListed ? ["leave"] : [];
  return [[...name, ...place], [...settings, ...copies], [...reset, ...end]].filter((group) => group.length > 0);
}

/** A name for the file of an export: the title without characters that file systems refuse, at most 80 characters long. */
export function exportName(title: string, format: "markdown" | "json"): string {
  const name = title.replace(/[\\/:*?"<>|\p{Cc}]/gu, " ").replace(/\s+/g, " ").trim().replace(/^\.+/, "");
  return `${Array.from(name).slice(0, 80).join("").trim() || "chat"}.${format === "markdown" ? "md" : "json"}`;
}
