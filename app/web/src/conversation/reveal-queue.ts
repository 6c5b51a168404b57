// The parts of an answer that are not shown yet, in order. The first of them may be shown in part.

import { RevealCursor, RevealTree } from "./reveal-tree.ts";

/** Something that is revealed: `open` returns the element to fill, `close` is called once it is complete. */
export type Revealed = { readonly tree: RevealTree; readonly open: () => Element; readonly close: () => void };

export class RevealQueue {
  #waiting: Revealed[] = [];
  #current: { cursor: RevealCursor; close: () => void } | null = null;

  /** Adds something of which `skip` characters are shown at once. It appears when all before it is complete. */
  add(item: Revealed, skip = 0): void {
    if (skip === 0) return void this.#waiting.push(item);
    this.#begin(item, skip);
    this.#closeIfComplete();
  }

  /** The characters that are not shown yet. */
  get pending(): number {
    return this.#waiting.reduce((sum, { tree }) => sum + tree.weight, this.#current?.cursor.pending ?? 0);
  }

  /** Shows up to `count` more characters, and returns how many: see `RevealCursor.advance`. */
  advance(count: number): number {
    let shown = 0;
    while (shown < count) {
      if (!this.#current && !this.#beginNext()) break;
      const more = this.#current?.cursor.advance(count - shown) ?? 0;
      shown += more;
      if (!this.#closeIfComplete() && more === 0) break;
    }
    return shown;
  }

  /** Shows everything. */
  complete(): void {
    while (this.#current || this.#beginNext()) {
      this.#current?.cursor.advance(Infinity);
      this.#closeIfComplete();
    }
  }

  #beginNext(): boolean {
    const next = this.#waiting.shift();
    if (next) this.#begin(next, 0);
    return next !== undefined;
  }

  #begin({ tree, open, close }: Revealed, skip: number): void {
    this.#current = { cursor: RevealCursor.start(tree, open(), skip), close };
  }

  #closeIfComplete(): boolean {
    if (this.#current?.cursor.pending !== 0) return false;
    const { close } = this.#current;
    this.#current = null;
    close();
    return true;
  }
}
