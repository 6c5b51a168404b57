// Marks chats as read: the one that is open, once what has come in it has been in sight for a moment.

const MARK_DELAY_MS = 800;

export class ReadMarker {
  /** What was marked last. The list tells a little later that it is read, and until then it must not be marked again. */
  #marked: { id: string; revision: number } | null = null;
  readonly #mark: (id: string, revision: number) => void;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #due = "";

  /** `mark(id, revision)` tells the server. */
  constructor(mark: (id: string, revision: number) => void) {
    this.#mark = mark;
  }

  /** Mark, a moment later, what is in sight by then and unread to the account; `isNews` is whether there is something. */
  update(id: string, revision: number, isNews: boolean): void {
    const due = isNews && !this.#isMarked(id, revision) ? `${id} ${revision}` : "";
    if (due === this.#due) return;
    this.#due = due;
    clearTimeout(this.#timer);
    if (!due) return;
    this.#timer = setTimeout(() => {
      this.#marked = { id, revision };
      this.#mark(id, revision);
    }, MARK_DELAY_MS);
  }

  #isMarked(id: string, revision: number): boolean {
    return this.#marked?.id === id && revision <= this.#marked.revision;
  }
}
