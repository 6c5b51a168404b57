// The current search: its query, and the message to scroll to.

class SearchState {
  /** The words that the search of messages begins with. */
  query = "";
  /** Whether it begins in the open chat instead of in all chats. */
  inChat = false;
  /** The message to show once its chat is open, and the pages of earlier messages that were loaded to reach it. */
  target = $state.raw<{ threadId: string; messageId: string; pages: number } | null>(null);

  /** Set where the next search of messages begins, and with which words. */
  begin(inChat: boolean, query = ""): void {
    [this.inChat, this.query] = [inChat, query];
  }
}

export const searchState = new SearchState();
