// Marks chats as read: the one that is open, once what has come in it has been in sight for a moment.

const MOMENT_MS = 800;

export class ReadMarks {
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
  consider(id: string, revision: number, isNews: boolean): void {
    const due = isNews && !this.#isMarked(id, revision) ? `${id} ${revision}` : "";
    if (due === this.#due) return;
    this.#due = due;
    clearTimeout(this.#timer);
    if (!due) return;
    this.#timer = setTimeout(() => {
      this.#marked = { id, revision };
      this.#mark(id, revision);
    }, MOMENT_MS);
  }

  #isMarked(id: string, revision: number): boolean {
    return this.#marked?.id === id && revision <= this.#marked.revision;
  }
}
