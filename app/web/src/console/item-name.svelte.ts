// What the item of the open view is called; its id until that is known.

class ItemName {
  #named: { readonly id: string; readonly name: string } | null = $state.raw(null);

  of(id: string): string {
    return this.#named?.id === id ? this.#named.name : id;
  }

  set(id: string, name: string): void {
    this.#named = { id, name };
  }
}

export const itemName = new ItemName();
