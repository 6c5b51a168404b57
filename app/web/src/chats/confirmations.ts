// Confirmations before actions that can't be undone.

import type { ChatListItem } from "../state/page-model.ts";
import { m } from "../i18n/messages.ts";

type Confirmation = { title: string; text: string; yes: string };

export const RESET_CONFIRMATION: Confirmation = {
  title: m.reset_this_conversation(),
  text: m.this_deletes_all_messages_for_everyone_it(),
  yes: m.reset(),
};

/** An owner deletes the chat for everyone; others only remove it from their list. */
export function removalConfirmation({ title, role }: Pick<ChatListItem, "title" | "role">): Confirmation {
  if (role === "owner") return { title: title ? m.delete_chat_title({ title }) : m.delete_this_chat(), text: m.this_deletes_the_chat_for_everyone_it_cant(), yes: m.delete_action() };
  return { title: title ? m.remove_chat_title({ title }) : m.remove_this_chat(), text: m.youll_need_a_link_or_a_new_invitation_to(), yes: m.remove() };
}

/**
 * What to ask before a chat is removed; null if nothing needs to be asked, because the deletion can be undone. That of a shared chat
 * ends its links and invitations for good.
 */
export function deletionConfirmation(chat: Pick<ChatListItem, "title" | "role" | "entry">, undoSeconds: number): Confirmation | null {
  if (chat.role !== "owner" || undoSeconds <= 0) return removalConfirmation(chat);
  const isShared = chat.entry !== null && chat.entry.thread.visibility !== "private";
  return isShared ? { ...removalConfirmation(chat), text: m.this_deletes_the_shared_chat() } : null;
}
