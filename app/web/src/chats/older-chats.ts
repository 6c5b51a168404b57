// Chats of the account that the page's list does not have, because it has only those used last.

import { isRequestError, request } from "@khala/client";
import type { Page, Thread } from "@khala/client";
import type { ChatListing } from "../state/page-model.ts";
import type { PaletteChat } from "./palette-items.ts";

const PAGE_SIZE = 200;
/** So many pages are read at most: the search of messages finds what is still older. */
const MAX_PAGES = 25;

/** All chats of the account in pages, until `signal` ends it or the server does not answer. */
export async function* accountChats(signal: AbortSignal): AsyncGenerator<PaletteChat[]> {
  let cursor: string | undefined;
  for (let at = 0; at < MAX_PAGES; at++) {
    const page = await readPage(cursor, signal);
    if (page === null || signal.aborted) return;
    yield page.items.map(({ id, title, archived, folder }) => ({ id, title: title ?? "", archived: archived === true, folder: folder ?? null }));
    if (page.nextCursor === undefined) return;
    cursor = page.nextCursor;
  }
}

async function readPage(cursor: string | undefined, signal: AbortSignal): Promise<Page<Thread & ChatListing> | null> {
  const params = new URLSearchParams({ limit: String(PAGE_SIZE), ...(cursor && { cursor }) });
  try {
    return await request<Page<Thread & ChatListing>>("GET", `/api/threads?${params.toString()}`, { signal });
  } catch (error) {
    if (!isRequestError(error)) throw error;
    return null;
  }
}
