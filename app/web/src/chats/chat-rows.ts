// The rows of the chat list: filtered by title and grouped by day.

import type { ChatListItem } from "../state/page-model.ts";
import { NEW_CHAT } from "../state/strings.ts";
import { m } from "../i18n/messages.ts";

export type Day = string;
export type ListRow = { kind: "day"; day: Day } | { kind: "chat"; chat: ChatListItem };

/** The title of a chat, or "New chat". */
export function chatTitle({ title }: { title: string }): string {
  return title || NEW_CHAT;
}

/** The start of the day of `now` (ms), or of the day `before` days earlier. Local time, so days may have 23 or 25 hours. */
export function startOfDay(now: number, before = 0): number {
  const day = new Date(now);
  return new Date(day.getFullYear(), day.getMonth(), day.getDate() - before).getTime();
}

export function dayLabel(time: number, now: number): Day {
  if (time >= startOfDay(now)) return m.today();
  return time >= startOfDay(now, 1) ? m.yesterday() : m.earlier();
}

/** The chats whose titles contain all words of `query`, in any order, case and accents. */
export function filterChats(chats: readonly ChatListItem[], query: string): readonly ChatListItem[] {
  const words = foldText(query).split(/\s+/).filter(Boolean);
  if (words.length === 0) return chats;
  return chats.filter((chat) => words.every((word) => foldText(chatTitle(chat)).includes(word)));
}

function foldText(text: string): string {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}

/** The rows of the list: each day's heading once, before its first chat. Chats keep the given order. */
export function groupByDay(chats: readonly ChatListItem[], now: number): ListRow[] {
  const lines: ListRow[] = [];
  const named = new Set<Day>();
  for (const chat of chats) {
    const day = dayLabel(chat.changedAt, now);
    if (!named.has(day)) lines.push({ kind: "day", day });
    lines.push({ kind: "chat", chat });
    named.add(day);
  }
  return lines;
}

/** The same rows in the same order with the current state of their chats, without removed ones, so that nothing moves during a rename. */
export function keepOrder(lines: readonly ListRow[], chats: readonly ChatListItem[]): ListRow[] {
  const now = new Map(chats.map((chat) => [chat.id, chat]));
  return lines.flatMap((line): ListRow[] => {
    if (line.kind === "day") return [line];
    const chat = now.get(line.chat.id);
    return chat ? [{ kind: "chat", chat }] : [];
  });
}
