// Marks the open chat as read once its newest content has been visible for a moment.

const MARK_DELAY_MS = 800;

export class ReadMarker {
  /** The last mark. The list confirms it a little later; until then the same revision is not marked again. */
  #marked: { id: string; revision: number } | null = null;
  readonly #mark: (id: string, revision: number) => void;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #due = "";

  /** `mark(id, revision)` sends the mark to the server. */
  constructor(mark: (id: string, revision: number) => void) {
    this.#mark = mark;
  }

  /** Schedule a mark of this revision if there is unread content (`isNews`). */
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
