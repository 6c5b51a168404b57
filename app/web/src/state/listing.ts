// The list of chats: the account's, and those of this browser, where the account's word counts.

import type { Listed } from "../khala/frames.ts";
import type { ListPatch } from "../workers/stream.messages.ts";
import type { KnownChat } from "./keyring.ts";
import type { ListedChat } from "./shape.ts";
import { NEW_CHAT } from "./strings.ts";

/** The account's list after a change. */
export function patched(before: ReadonlyMap<string, Listed>, { whole, entries, removed }: ListPatch): ReadonlyMap<string, Listed> {
  const all = new Map(whole ? [] : before);
  for (const entry of entries) all.set(entry.thread.id, entry);
  for (const id of removed) all.delete(id);
  return all;
}

/** All chats to list, those used last first. `openId` is the open one, by the `openTitle` that the page has for it; what is open is not unread. */
export function listed(
  entries: Iterable<Listed>,
  own: readonly KnownChat[],
  { userId, openId, openTitle }: { userId: string | null; openId: string | null; openTitle: string | null },
): ListedChat[] {
  const theirs = new Map([...entries].map((entry) => [entry.thread.id, entry]));
  const mine = own.filter(({ id, ownerId }) => !theirs.has(id) && (!ownerId || ownerId === userId));
  const items = [...mine.map((chat) => ofBrowser(chat, userId)), ...[...theirs.values()].map(ofAccount)];
  const named = items.map((item) => (item.id === openId ? { ...item, title: item.title || (openTitle ?? ""), unread: false } : item));
  return named.sort((one, other) => other.changedAt - one.changedAt).map((item) => ({ ...item, title: item.title || NEW_CHAT }));
}

function ofBrowser(chat: KnownChat, userId: string | null): ListedChat {
  return {
    id: chat.id,
    title: chat.title ?? "",
    role: chat.shareKey && !chat.key ? "viewer" : "owner",
    note: chat.shareKey && !chat.key ? "Shared with you" : userId !== null && chat.key ? "Only in this browser" : "",
    unread: false,
    running: false,
    needsApproval: false,
    changedAt: chat.usedAt ?? 0,
    anonymous: Boolean(chat.key),
    listed: null,
  };
}

function ofAccount(entry: Listed): ListedChat {
  const { thread, role, unread, running, needsApproval } = entry;
  const note = role === "owner" ? "" : "Shared with you";
  return { id: thread.id, title: thread.title ?? "", role, note, unread, running, needsApproval, changedAt: Date.parse(thread.updatedAt), anonymous: false, listed: entry };
}
