// The rows of the chat list: pinned chats, then folders, then the rest by time.

import { formatMonth } from "../state/format.ts";
import type { ChatListItem } from "../state/page-model.ts";
import { NEW_CHAT } from "../state/strings.ts";
import { m } from "../i18n/messages.ts";

/** The heading of a section. `folder` has the name of a folder and whether its chats are hidden. Beside a heading that `hasNew` is a button for a new folder. */
export type HeadingRow = { kind: "heading"; key: string; text: string; hasNew?: boolean; folder?: { name: string; count: number; isClosed: boolean } };
export type ListRow = HeadingRow | { kind: "chat"; chat: ChatListItem };

/** The title of a chat, or "New chat". */
export function chatTitle({ title }: { title: string }): string {
  return title || NEW_CHAT;
}

/** The start of the day of `now` (ms), or of the day `before` days earlier. Local time, so days may have 23 or 25 hours. */
export function startOfDay(now: number, before = 0): number {
  const day = new Date(now);
  return new Date(day.getFullYear(), day.getMonth(), day.getDate() - before).getTime();
}

/** The heading above chats of this time (ms): a day, the last 7 or 30 days, a month, or for earlier years the year. */
export function periodLabel(time: number, now: number): string {
  if (time >= startOfDay(now)) return m.today();
  if (time >= startOfDay(now, 1)) return m.yesterday();
  if (time >= startOfDay(now, 7)) return m.last_7_days();
  return time >= startOfDay(now, 30) ? m.last_30_days() : formatMonth(time, now);
}

/** Whether the text contains all words of `query`, in any order, case and accents. */
export function hasWords(text: string, query: string): boolean {
  const folded = foldText(text);
  return foldText(query).split(/\s+/).every((word) => folded.includes(word));
}

/** The text without case and accents. */
export function foldText(text: string): string {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}

/** The chats that are archived, or those that are not. An empty chat is among them only with a draft. */
export function chatsOf(chats: readonly ChatListItem[], { archived, hasDraft = () => false }: { archived: boolean; hasDraft?: (id: string) => boolean }): readonly ChatListItem[] {
  return chats.filter((chat) => chat.archived === archived && (!chat.isEmpty || hasDraft(chat.id)));
}

/** The names of the folders of chats and of `others`, in the order of the alphabet. */
export function folderNames(chats: readonly ChatListItem[], others: readonly { name: string }[] = []): string[] {
  const names = new Set([...chats.flatMap(({ folder }) => folder ?? []), ...others.map(({ name }) => name)]);
  return [...names].sort((one, other) => one.localeCompare(other, undefined, { numeric: true, sensitivity: "base" }));
}

/** The rows of the list. Chats keep the given order within their section; those in folders of `closed` are hidden. `made` are folders that may be empty. */
export function arrangeRows(chats: readonly ChatListItem[], now: number, closed: ReadonlySet<string> = new Set(), made: readonly { name: string }[] = []): ListRow[] {
  const pinned = chats.filter((chat) => chat.pinned);
  const others = chats.filter((chat) => !chat.pinned);
  const heading: ListRow[] = pinned.length > 0 ? [{ kind: "heading", key: "pinned", text: m.pinned() }] : [];
  const folders = folderNames(others, made).flatMap((name) => folderRows(name, others.filter(({ folder }) => folder === name), closed.has(name)));
  const ofFolders: ListRow[] = folders.length > 0 ? [{ kind: "heading", key: "folders", text: m.folders(), hasNew: true }] : [];
  return [...heading, ...pinned.map(chatRow), ...ofFolders, ...folders, ...groupByTime(others.filter(({ folder }) => folder === null), now)];
}

function folderRows(name: string, chats: readonly ChatListItem[], isClosed: boolean): ListRow[] {
  return [{ kind: "heading", key: `folder ${name}`, text: name, folder: { name, count: chats.length, isClosed } }, ...(isClosed ? [] : chats.map(chatRow))];
}

function chatRow(chat: ChatListItem): ListRow {
  return { kind: "chat", chat };
}

/** The rows of chats in no section: each period's heading once, before its first chat. */
export function groupByTime(chats: readonly ChatListItem[], now: number): ListRow[] {
  const lines: ListRow[] = [];
  const named = new Set<string>();
  for (const chat of chats) {
    const period = periodLabel(chat.changedAt, now);
    if (!named.has(period)) lines.push({ kind: "heading", key: `period ${period}`, text: period });
    lines.push(chatRow(chat));
    named.add(period);
  }
  return lines;
}

/** The same rows in the same order with the current state of their chats, without removed ones, so that nothing moves during a rename. */
export function keepOrder(lines: readonly ListRow[], chats: readonly ChatListItem[]): ListRow[] {
  const now = new Map(chats.map((chat) => [chat.id, chat]));
  return lines.flatMap((line): ListRow[] => {
    if (line.kind === "heading") return [line];
    const chat = now.get(line.chat.id);
    return chat ? [{ kind: "chat", chat }] : [];
  });
}
