// The entries of the palette: what a query finds among chats, actions and agents.

import type { ChatListItem } from "../state/page-model.ts";
import { chatTitle, foldText, hasWords } from "./chat-rows.ts";

/** An entry that can be chosen. `ranges` are [start, end) of the matching words in `detail`. */
export type PaletteItem = { id: string; label: string; detail?: string; ranges?: readonly (readonly [number, number])[]; run: () => void };
export type PaletteGroup = { id: string; heading: string; items: readonly PaletteItem[] };

const MAX_CHATS = 6;
const MAX_AGENTS = 5;

/** The chats whose titles have the words of the query; without one, those used last. Chats that are not archived come first. */
export function chatsFor(chats: readonly ChatListItem[], query: string): ChatListItem[] {
  const found = query.trim() ? chats.filter((chat) => hasWords(chatTitle(chat), query)) : chats.filter(({ archived }) => !archived);
  return found.toSorted((one, other) => Number(one.archived) - Number(other.archived) || Number(startsWith(other, query)) - Number(startsWith(one, query))).slice(0, MAX_CHATS);
}

function startsWith(chat: ChatListItem, query: string): boolean {
  return query.trim() !== "" && foldText(chatTitle(chat)).startsWith(foldText(query.trim()));
}

/** The entries whose labels have the words of the query; `most` of them. */
export function itemsFor(items: readonly PaletteItem[], query: string, most = Infinity): PaletteItem[] {
  return items.filter(({ label }) => hasWords(label, query)).slice(0, most);
}

/** The agents for a query; none without one, because the list would hide the chats. */
export function agentsFor(items: readonly PaletteItem[], query: string): PaletteItem[] {
  return query.trim() ? itemsFor(items, query, MAX_AGENTS) : [];
}

/** The index after a step through `count` entries, which goes around at both ends; -1 if there are none. */
export function stepIndex(at: number, step: number, count: number): number {
  return count === 0 ? -1 : (at + step + count) % count;
}
