// Confirmations before actions that can't be undone.

import type { ChatListItem } from "../state/page-model.ts";

type Confirmation = { title: string; text: string; yes: string };

export const RESET_CONFIRMATION: Confirmation = {
  title: "Reset this conversation?",
  text: "This deletes all messages for everyone. It can’t be undone.",
  yes: "Reset",
};

/** An owner deletes the chat for everyone; others only remove it from their list. */
export function removalConfirmation({ title, role }: Pick<ChatListItem, "title" | "role">): Confirmation {
  const name = title ? `“${title}”` : "this chat";
  if (role === "owner") return { title: `Delete ${name}?`, text: "This deletes the chat for everyone. It can’t be undone.", yes: "Delete" };
  return { title: `Remove ${name} from your list?`, text: "You’ll need a link or a new invitation to open it again.", yes: "Remove" };
}
