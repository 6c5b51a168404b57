// What is asked before something can't be undone.

import type { ChatListItem } from "../state/page-model.ts";

type Question = { title: string; text: string; yes: string };

export const RESET: Question = {
  title: "Reset this conversation?",
  text: "This deletes all messages for everyone. It can’t be undone.",
  yes: "Reset",
};

/** A chat of one's own is deleted, for all; another only leaves the list. */
export function removal({ title, role }: Pick<ChatListItem, "title" | "role">): Question {
  const name = title ? `“${title}”` : "this chat";
  if (role === "owner") return { title: `Delete ${name}?`, text: "This deletes the chat for everyone. It can’t be undone.", yes: "Delete" };
  return { title: `Remove ${name} from your list?`, text: "You’ll need a link or a new invitation to open it again.", yes: "Remove" };
}
