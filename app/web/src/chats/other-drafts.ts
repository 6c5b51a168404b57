// Messages that the person has begun in chats other than the open one.

import { loadDraft } from "../conversation/drafts.ts";
import { page } from "../state/page.svelte.ts";

/** Whether the person has begun a message in this chat, which is not the open one. */
export function hasDraftElsewhere(chatId: string): boolean {
  return chatId !== page.chat?.id && loadDraft(chatId) !== "";
}
