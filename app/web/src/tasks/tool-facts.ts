// What the server says about the tools of a chat, read once for all calls that wait.

import type { Items, Tool } from "@khala/client";
import type { ChatView } from "../state/page-model.ts";
import { LruCache } from "./lru-cache.ts";

const MAX_CHATS = 20;
const known = new LruCache<string, Promise<readonly Tool[]>>(MAX_CHATS);

/** What the server says about a tool; null if it offers none of this name. Tools that are new in the chat are found by reading again. Errors as those of `request`. */
export async function readToolFacts(chat: Pick<ChatView, "call" | "id">, name: string): Promise<Tool | null> {
  const find = (tools: readonly Tool[]) => tools.find((tool) => tool.name === name) ?? null;
  const before = await known.get(chat.id)?.catch(() => null);
  const found = before ? find(before) : null;
  if (found) return found;
  const reading = chat.call<Items<Tool>>("GET", `/api/tools?threadId=${chat.id}`).then(({ items }) => items);
  known.set(chat.id, reading);
  return find(await reading);
}
