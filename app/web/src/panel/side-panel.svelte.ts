// What the side panel shows: one thing that an answer made, or the list of all of them.

class SidePanelState {
  isOpen = $state(false);
  /** The chat whose things are shown; the panel closes when another chat opens. */
  chatId: string | null = $state(null);
  /** The key of the shown item; null for the list. */
  key: string | null = $state(null);
  /** The message whose version is shown; null for the newest one. */
  messageId: string | null = $state(null);

  open(chatId: string, key: string | null = null, messageId: string | null = null): void {
    this.isOpen = true;
    this.chatId = chatId;
    this.show(key, messageId);
  }

  show(key: string | null, messageId: string | null = null): void {
    this.key = key;
    this.messageId = messageId;
  }

  close(): void {
    this.isOpen = false;
  }
}

export const sidePanel = new SidePanelState();
