// Marks chats as read: the one that is open, once what has come in it has been in sight for a moment.

const MOMENT_MS = 800;

export class ReadMarks {
  readonly #marked = new Map<string, number>();
  readonly #mark: (id: string, revision: number) => void;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #due = "";

  /** `mark(id, revision)` tells the server. */
  constructor(mark: (id: string, revision: number) => void) {
    this.#mark = mark;
  }

  /** Mark, a moment later, what is in sight by then and unread to the account; `isNews` is whether there is something. */
  consider(id: string, revision: number, isNews: boolean): void {
    const due = isNews && revision > (this.#marked.get(id) ?? -1) ? `${id} ${revision}` : "";
    if (due === this.#due) return;
    this.#due = due;
    clearTimeout(this.#timer);
    if (!due) return;
    this.#timer = setTimeout(() => {
      this.#marked.set(id, revision);
      this.#mark(id, revision);
    }, MOMENT_MS);
  }
}
