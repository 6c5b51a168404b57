// The items of the chat list: the account's threads, and the chats that only this browser knows.

import type { ThreadListEntry } from "@khala/client";
import type { ListPatch } from "../workers/stream.messages.ts";
import type { KnownChat } from "./keyring.ts";
import type { ChatListing, ChatListItem } from "./page-model.ts";
import { NEW_CHAT } from "./strings.ts";
import { m } from "../i18n/messages.ts";

/** The account's thread list after a patch. */
export function applyListPatch(before: ReadonlyMap<string, ThreadListEntry>, { whole, entries, removed }: ListPatch): ReadonlyMap<string, ThreadListEntry> {
  const all = new Map(whole ? [] : before);
  for (const entry of entries) all.set(entry.thread.id, entry);
  for (const id of removed) all.delete(id);
  return all;
}

/**
 * All chats, most recently used first. `openTitle` is the page's title of the open chat `openId`, which never counts as unread, and
 * `isOpenUnused` whether nothing has happened in it. A chat that `hasMembers` is never empty.
 */
export function mergeChats(
  entries: Iterable<ThreadListEntry>,
  own: readonly KnownChat[],
  { userId, openId, openTitle, isOpenUnused = false, hasMembers = () => false }: { userId: string | null; openId: string | null; openTitle: string | null; isOpenUnused?: boolean; hasMembers?: (id: string) => boolean },
): ChatListItem[] {
  const theirs = new Map([...entries].map((entry) => [entry.thread.id, entry]));
  const mine = own.filter(({ id, ownerId }) => !theirs.has(id) && (!ownerId || ownerId === userId));
  // The server lists a new chat before it has its folder.
  const filed = new Map(own.filter(({ ownerId }) => ownerId && ownerId === userId).map(({ id, folder }) => [id, folder ?? null]));
  const accounts = [...theirs.values()].map(accountItem).map((item) => ({ ...item, folder: item.folder ?? filed.get(item.id) ?? null }));
  const items = [...mine.map((chat) => browserItem(chat, userId)), ...accounts];
  const named = items.map((item) => (item.id === openId ? { ...item, title: item.title || (openTitle ?? ""), unread: false, isEmpty: item.isEmpty || isOpenUnused } : item));
  return named.sort((one, other) => other.changedAt - one.changedAt).map((item) => ({ ...item, title: item.title || NEW_CHAT, isEmpty: item.isEmpty && !item.title && !item.pinned && !item.archived && !hasMembers(item.id) }));
}

function browserItem(chat: KnownChat, userId: string | null): ChatListItem {
  return {
    id: chat.id,
    title: chat.title ?? "",
    role: chat.shareKey && !chat.key ? "viewer" : "owner",
    accessNote: chat.shareKey && !chat.key ? m.shared_with_you() : userId !== null && chat.key ? m.only_in_this_browser() : "",
    unread: false,
    running: false,
    needsApproval: false,
    changedAt: chat.usedAt ?? 0,
    isAnonymous: Boolean(chat.key),
    entry: null,
    isEmpty: !chat.shareKey && (chat.unused ?? !chat.created),
    ...listingOf(chat),
  };
}

function accountItem(entry: ThreadListEntry): ChatListItem {
  const { thread, role, unread, running, needsApproval } = entry;
  const note = role === "owner" ? "" : m.shared_with_you();
  return { id: thread.id, title: thread.title ?? "", role, accessNote: note, unread, running, needsApproval, planWaits: entry.planWaits === true, changedAt: Date.parse(thread.updatedAt), isAnonymous: false, entry, isEmpty: isUntouched(entry), ...listingOf(entry) };
}

/** Whether it has only been created: its welcome, if it has one, is its first revision. */
function isUntouched({ role, thread }: ThreadListEntry): boolean {
  return role === "owner" && thread.visibility === "private" && thread.revision <= 1;
}

function listingOf({ pinned, archived, folder }: ChatListing): Pick<ChatListItem, "pinned" | "archived" | "folder"> {
  return { pinned: pinned === true, archived: archived === true, folder: folder ?? null };
}
