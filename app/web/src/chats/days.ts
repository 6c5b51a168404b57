// The list of chats as it is shown: filtered by a few letters, and cut by days.

import type { ChatListItem } from "../state/page-model.ts";
import { NEW_CHAT } from "../state/strings.ts";

export type Day = "Today" | "Yesterday" | "Earlier";
export type Line = { kind: "day"; day: Day } | { kind: "chat"; chat: ChatListItem };

/** The name of a chat in the list. */
export function called({ title }: { title: string }): string {
  return title || NEW_CHAT;
}

/** When the day began in which `now` (ms) is, and the one before; by the clock on the wall, so days may have 23 or 25 hours. */
export function dayStart(now: number, before = 0): number {
  const day = new Date(now);
  return new Date(day.getFullYear(), day.getMonth(), day.getDate() - before).getTime();
}

export function dayOf(time: number, now: number): Day {
  if (time >= dayStart(now)) return "Today";
  return time >= dayStart(now, 1) ? "Yesterday" : "Earlier";
}

/** Those whose titles have all words of `query` in them, in any order and case. */
export function filtered(chats: readonly ChatListItem[], query: string): readonly ChatListItem[] {
  const words = folded(query).split(/\s+/).filter(Boolean);
  if (words.length === 0) return chats;
  return chats.filter((chat) => words.every((word) => folded(called(chat)).includes(word)));
}

function folded(text: string): string {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}

/** The lines of the list: before the first chat of each day its name, once. Chats are in the order given. */
export function byDay(chats: readonly ChatListItem[], now: number): Line[] {
  const lines: Line[] = [];
  const named = new Set<Day>();
  for (const chat of chats) {
    const day = dayOf(chat.changedAt, now);
    if (!named.has(day)) lines.push({ kind: "day", day });
    lines.push({ kind: "chat", chat });
    named.add(day);
  }
  return lines;
}

/** The lines as they stood, each with what its chat is by now, without those that are gone: so nothing moves under a hand. */
export function still(lines: readonly Line[], chats: readonly ChatListItem[]): Line[] {
  const now = new Map(chats.map((chat) => [chat.id, chat]));
  return lines.flatMap((line): Line[] => {
    if (line.kind === "day") return [line];
    const chat = now.get(line.chat.id);
    return chat ? [{ kind: "chat", chat }] : [];
  });
}
