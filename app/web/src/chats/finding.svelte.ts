// What the person is looking for: the words, and the message that they want to see.

class Finding {
  /** The words of the filter of chats, which the search in messages begins with. */
  words = $state("");
  /** The message to be shown as soon as its chat is open. */
  goal = $state.raw<{ threadId: string; messageId: string } | null>(null);
}

export const finding = new Finding();
