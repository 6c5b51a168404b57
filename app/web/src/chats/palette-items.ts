// The entries of the palette: what a query finds among chats, actions and agents.

import type { ChatListItem } from "../state/page-model.ts";
import type { ShortcutLabel } from "./shortcut-keys.ts";
import { chatTitle, foldText, hasWords } from "./chat-rows.ts";

/** A chat that the palette finds by its title. */
export type PaletteChat = Pick<ChatListItem, "id" | "title" | "archived" | "folder">;
/**
 * An entry that can be chosen. `icon` is a path in a box of 20 by 20, `ranges` are [start, end) of the matching words in `detail`.
 * `stays`: it shows more entries instead of closing the palette.
 */
export type PaletteItem = { id: string; label: string; icon: string; detail?: string; shortcut?: ShortcutLabel; ranges?: readonly (readonly [number, number])[]; stays?: boolean; run: () => void };
/** `isFoundByText`: its entries match by a text that they contain, not by their labels. */
export type PaletteGroup = { id: string; heading: string; items: readonly PaletteItem[]; isFoundByText?: boolean };

/** So many chats are shown at first. */
export const MAX_CHATS = 6;
/** So many chats are shown when all of them are asked for. */
export const MAX_UNFOLDED_CHATS = 500;
const MAX_AGENTS = 5;

/** Ranks of matches, the best first; those by a text rank behind all labels. */
const RANKS = { equal: 0, start: 1, startOfWord: 2, inside: 3, text: 4 } as const;

/** How well a label that has the words of the query fits, as one of `RANKS`. Without a query, all fit alike. */
export function matchRank(label: string, query: string): number {
  const [text, words] = [foldText(label).trim(), foldText(query).trim()];
  if (words === "" || text === words) return RANKS.equal;
  if (text.startsWith(words)) return RANKS.start;
  const starts = text.split(/[\s\p{P}]+/u);
  return words.split(/\s+/).every((word) => starts.some((start) => start.startsWith(word))) ? RANKS.startOfWord : RANKS.inside;
}

/** The groups that have entries, the one with the best match first; else in their order. */
export function bestFirst(groups: readonly PaletteGroup[], query: string): PaletteGroup[] {
  const rankOf = ({ items, isFoundByText }: PaletteGroup): number => (isFoundByText ? RANKS.text : Math.min(...items.filter(({ stays }) => !stays).map(({ label }) => matchRank(label, query))));
  const ranks = groups.filter(({ items }) => items.length > 0).map((group) => ({ group, rank: query.trim() ? rankOf(group) : 0 }));
  return ranks.toSorted((one, other) => one.rank - other.rank).map(({ group }) => group);
}

/** All chats whose titles have the words of the query, the best match first; without one, those used last. Chats that are not archived come first. */
export function chatsFor<Chat extends PaletteChat>(chats: readonly Chat[], query: string): Chat[] {
  if (!query.trim()) return chats.filter(({ archived }) => !archived).slice(0, MAX_CHATS);
  return ranked(chats, chatTitle, query).toSorted((one, other) => Number(one.archived) - Number(other.archived));
}

/** The entries whose labels have the words of the query, the best match first; `most` of them. */
export function itemsFor(items: readonly PaletteItem[], query: string, most = Infinity): PaletteItem[] {
  return ranked(items, ({ label }) => label, query).slice(0, most);
}

/** Those whose labels have the words of the query, the best match first. */
function ranked<Item>(items: readonly Item[], labelOf: (item: Item) => string, query: string): Item[] {
  const found = items.map((item) => ({ item, label: labelOf(item) })).filter(({ label }) => hasWords(label, query));
  const ranks = found.map(({ item, label }) => ({ item, rank: matchRank(label, query) }));
  return ranks.toSorted((one, other) => one.rank - other.rank).map(({ item }) => item);
}

/** The agents for a query; none without one, because the list would hide the chats. */
export function agentsFor(items: readonly PaletteItem[], query: string): PaletteItem[] {
  return query.trim() ? itemsFor(items, query, MAX_AGENTS) : [];
}

/** The index after a step through `count` entries, which goes around at both ends; -1 if there are none. */
export function stepIndex(at: number, step: number, count: number): number {
  return count === 0 ? -1 : (at + step + count) % count;
}
