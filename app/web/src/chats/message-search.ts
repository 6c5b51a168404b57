// Searches messages: on the server, which has all of a person's chats, and in this browser, which also works offline.

import type { SearchResult } from "../agent/client.ts";
import { isRequestError, request } from "@khala/client";
import type { AccessKeys, Highlight, Page, SearchHit } from "@khala/client";

/** A message that was found. `ranges` are [start, end) of the matching words in `snippet`, in UTF-16 units. */
export type FoundMessage = {
  threadId: string;
  messageId: string;
  /** The title of the chat, null if it is unknown. */
  title: string | null;
  /** The file of the message that the snippet is from: its name, or null if it has none. Undefined: its text. */
  file?: string | null;
  snippet: string;
  ranges: [number, number][];
  isExact: boolean;
  /** Whether its words alone would not have found it. */
  isByMeaning: boolean;
};

const MAX_SNIPPET_CHARACTERS = 160;
const CONTEXT_CHARACTERS = 40;

/** The chat that is searched, with the keys that open it; null for all chats of the account. */
export type SearchScope = { threadId: string; keys: AccessKeys } | null;

/**
 * The messages that the server finds; null if it is out of reach or does not search. Without `byMeaning`, it answers at once; with
 * it, it may wait for a model.
 */
export async function searchServer(query: string, limit: number, byMeaning: boolean, signal: AbortSignal, scope: SearchScope = null): Promise<FoundMessage[] | null> {
  const params = new URLSearchParams({ q: query, kind: "message", meaning: byMeaning ? "1" : "0", limit: String(limit), ...(scope && { threadId: scope.threadId }) });
  try {
    const { items } = await request<Page<SearchHit>>("GET", `/api/search?${params.toString()}`, { signal, ...(scope && { keys: scope.keys }) });
    return items.flatMap(foundMessage);
  } catch (error) {
    if (!isRequestError(error)) throw error;
    return null;
  }
}

/** The messages that this browser finds. */
export function foundLocally(results: readonly SearchResult[]): FoundMessage[] {
  return results.map(({ threadId, messageId, title, snippet, ranges, by }) => ({ threadId, messageId, title, snippet, ranges, isExact: by === "words", isByMeaning: false }));
}

/**
 * The messages of both searches, exact matches first. The server knows all messages, and this browser those of the last
 * seconds and words that are not complete: what is only similar here is left out.
 */
export function mergeFound(server: readonly FoundMessage[] | null, local: readonly FoundMessage[], limit: number): FoundMessage[] {
  if (server === null) return unique(local).slice(0, limit);
  const exact = server.filter(({ isExact }) => isExact);
  exact.push(...local.filter((found) => found.isExact && !has(exact, found)));
  return unique([...exact, ...server.filter((found) => !found.isExact && !has(exact, found))]).slice(0, limit);
}

/** Each message once, however often it was found. */
function unique(found: readonly FoundMessage[]): FoundMessage[] {
  const seen = new Set<string>();
  return found.filter(({ messageId }) => !seen.has(messageId) && seen.add(messageId));
}

function has(found: readonly FoundMessage[], { messageId }: FoundMessage): boolean {
  return found.some((other) => other.messageId === messageId);
}

function foundMessage({ threadId, messageId, blobId, name, text, highlights, match, by }: SearchHit): FoundMessage[] {
  if (threadId === undefined || messageId === undefined) return [];
  const file = blobId === undefined ? {} : { file: name ?? null };
  return [{ threadId, messageId, title: null, ...file, ...excerptOf(text, highlights), isExact: match === "exact", isByMeaning: by === "meaning" }];
}

/** The part of a text around its first highlight, in one line. */
export function excerptOf(text: string, highlights: readonly Highlight[]): { snippet: string; ranges: [number, number][] } {
  const at = highlights[0]?.start ?? 0;
  let from = at <= CONTEXT_CHARACTERS ? 0 : at - CONTEXT_CHARACTERS;
  const space = text.slice(from, at).search(/\s/u);
  if (from > 0) from = space < 0 ? at : from + space + 1;
  let to = Math.min(text.length, from + MAX_SNIPPET_CHARACTERS);
  if (/[\ud800-\udbff]/.test(text.charAt(to - 1))) to -= 1;
  const lead = from > 0 ? "… " : "";
  const shift = lead.length - from;
  return {
    // Each line end or tab becomes one space, so that positions stay the same.
    snippet: lead + text.slice(from, to).replace(/\s/gu, " ") + (to < text.length ? " …" : ""),
    ranges: highlights.filter(({ end }) => end <= to).map(({ start, end }) => [start + shift, end + shift]),
  };
}
