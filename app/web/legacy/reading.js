// Marks chats as read: the one that is open, once what has come in it has been in sight for a moment.

const MOMENT_MS = 800;

export class ReadMarks {
  #marked = new Map();
  #timer = null;
  #due = "";

  /** Mark, a moment later by `mark(id, revision)`, what is in sight by then and unread to the account. */
  consider({ chat, state, list, refused }, mark) {
    const { revision } = state;
    const isUnread = list.entries.get(chat.id)?.unread === true && revision !== null && refused === null;
    const isNews = isUnread && !document.hidden && revision > (this.#marked.get(chat.id) ?? -1);
    const due = isNews ? `${chat.id} ${revision}` : "";
    if (due === this.#due) return;
    this.#due = due;
    clearTimeout(this.#timer);
    if (isNews) this.#timer = setTimeout(() => (this.#marked.set(chat.id, revision), mark(chat.id, revision)), MOMENT_MS);
  }
}
