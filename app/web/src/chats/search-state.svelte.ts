// The current search: its query, and the message to scroll to.

class SearchState {
  /** The text of the chat filter, which the message search starts with. */
  query = $state("");
  /** Whether the search begins in the open chat instead of in all chats. */
  inChat = $state(false);
  /** The message to show once its chat is open, and the pages of earlier messages that were loaded to reach it. */
  target = $state.raw<{ threadId: string; messageId: string; pages: number } | null>(null);
}

export const searchState = new SearchState();
