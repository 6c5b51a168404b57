// What the item of the open view is called.

class ItemName {
  #named: { readonly id: string; readonly name: string } | null = $state.raw(null);

  /** null until the name is known. */
  of(id: string): string | null {
    return this.#named?.id === id ? this.#named.name : null;
  }

  set(id: string, name: string): void {
    this.#named = { id, name };
  }
}

export const itemName = new ItemName();
