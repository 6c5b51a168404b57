// The menus of chats and folders, and the dialogs that they open.

import { page } from "../state/page.svelte.ts";
import type { ChatListItem, ChatView } from "../state/page-model.ts";

class ChatMenuState {
  /** The chat whose menu is open, and the button that opened it. */
  open: { chat: ChatListItem; anchor: HTMLElement; inList: boolean } | null = $state.raw(null);
  /** The chat of the dialog in which it is renamed or filed. */
  chat: ChatListItem | null = $state.raw(null);
  /** The folder whose menu is open, and the button that opened it. `onopen` is called when a chat there opens. */
  openFolder: { name: string; anchor: HTMLElement; onopen: () => void } | null = $state.raw(null);
  /** The folder that a dialog shows or renames; null in the dialog that moves a chat or makes a folder. */
  folder: { name: string; renames: boolean } | null = $state.raw(null);
  /** The id of the chat that is renamed in its row. */
  editingId: string | null = $state(null);
  /** Whether the list shows the archived chats instead of the others. */
  showsArchived = $state(false);

  /** Open a dialog for this folder. */
  askFolder(name: string, renames = false): void {
    this.folder = { name, renames };
    page.dialog = "folder";
  }

  /** Open the dialog for a new folder. */
  askNewFolder(): void {
    this.folder = this.chat = null;
    page.dialog = "folder";
  }

  /** Open a dialog for this chat. */
  ask(dialog: "rename" | "folder", chat: ChatListItem): void {
    this.chat = chat;
    this.folder = null;
    page.dialog = dialog;
  }
}

export const chatMenu = new ChatMenuState();

/** The list's item of the open chat; one without an entry if the chat is not on the list. */
export function itemOf(chat: ChatView): ChatListItem {
  const listed = page.chats.items.find(({ id }) => id === chat.id);
  if (listed) return listed;
  return { id: chat.id, title: chat.title, role: chat.role ?? "viewer", accessNote: "", unread: false, running: false, needsApproval: false, changedAt: 0, isAnonymous: false, entry: null, pinned: false, archived: false, folder: null, isEmpty: false };
}
