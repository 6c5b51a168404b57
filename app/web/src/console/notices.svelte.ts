// Short messages about what an action did.

const SHOWN_MS = 10_000;

class Notices {
  items: readonly { id: number; text: string }[] = $state.raw([]);
  #nextId = 0;

  /** Show a sentence for some seconds. */
  show(text: string): void {
    const id = this.#nextId++;
    this.items = [...this.items.slice(-3), { id, text }];
    setTimeout(() => (this.items = this.items.filter((item) => item.id !== id)), SHOWN_MS);
  }
}

export const notices = new Notices();
