// Which page of a keyset-paged list is shown: the cursors of the pages up to it.

export class Pager {
  #cursors: readonly string[] = $state.raw([]);

  /** The cursor of the present page; undefined for the first. */
  get cursor(): string | undefined {
    return this.#cursors.at(-1);
  }

  get page(): number {
    return this.#cursors.length + 1;
  }

  next(cursor: string): void {
    this.#cursors = [...this.#cursors, cursor];
  }

  previous(): void {
    this.#cursors = this.#cursors.slice(0, -1);
  }

  /** Show the first page, for example because a filter has changed. */
  reset(): void {
    if (this.#cursors.length > 0) this.#cursors = [];
  }
}
