// The loaded agent template. Templates are a lazy chunk, because most visits use none.

import type { Template } from "./run-options.ts";

export class LoadedTemplate {
  #found: Template | null = $state.raw(null);

  /** Load the template with this id. Returns false if that fails. */
  async load(id: string | null): Promise<boolean> {
    if (id === null) return true;
    try {
      const { findTemplate } = await import("../agent/templates.ts");
      this.#found = findTemplate(id);
      return true;
    } catch (error) {
      // Usually there is no network and the chunk was never cached.
      console.warn("khala", "The agents can't be loaded.", error);
      return false;
    }
  }

  /** The template with this id, if it is loaded. */
  get(id: string | null): Template | null {
    return this.#found?.id === id ? this.#found : null;
  }
}
