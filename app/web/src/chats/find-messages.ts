// Finds messages for the search dialog and the palette: on the server, and in this browser.

import { search } from "../agent/client.ts";
import { page } from "../state/page.svelte.ts";
import { chatTitle } from "./chat-rows.ts";
import { foundLocally, searchServer, type FoundMessage, type SearchScope } from "./message-search.ts";
import { searchState } from "./search-state.svelte.ts";

/** What the server finds; null without an account, unless one chat is searched, or if the server does not answer. */
export async function findOnServer(query: string, scope: SearchScope, { limit, byMeaning, signal }: { limit: number; byMeaning: boolean; signal: AbortSignal }): Promise<FoundMessage[] | null> {
  if ((page.account.user === null && scope === null) || page.connection.phase === "offline") return null;
  try {
    return await searchServer(query, limit, byMeaning, signal, scope);
  } catch (error) {
    if (!signal.aborted) console.error(error);
    return null;
  }
}

/** What this browser finds among the messages that it has seen; null if it cannot search. */
export async function findLocally(query: string, scope: SearchScope, limit: number): Promise<FoundMessage[] | null> {
  try {
    const found = foundLocally(await search(query, limit)).filter(isListed);
    return scope === null ? found : found.filter(({ threadId }) => threadId === scope.threadId);
  } catch (error) {
    console.error(error);
    return null;
  }
}

/** Whether the chat is still listed: another browser may have removed it. Unknown while the list has more pages. */
function isListed({ threadId }: FoundMessage): boolean {
  return page.chats.hasMore || page.chat?.id === threadId || page.chats.items.some(({ id }) => id === threadId);
}

export function titleOfFound({ threadId, title }: FoundMessage): string {
  return chatTitle({ title: page.chats.items.find(({ id }) => id === threadId)?.title ?? title ?? "" });
}

/** Close the dialog, open the chat and scroll to the message. */
export function openFound({ threadId, messageId }: Pick<FoundMessage, "threadId" | "messageId">): void {
  searchState.target = { threadId, messageId, pages: 0 };
  page.dialog = null;
  page.open(threadId);
}
