// The agent's template that is loaded. The templates are not among what the page loads first: only who has chosen one needs them.

import type { Template } from "./run-options.ts";

export class LoadedTemplate {
  #found: Template | null = $state.raw(null);

  /** Load the template with this id; false if that fails. */
  async load(id: string | null): Promise<boolean> {
    if (id === null) return true;
    try {
      const { findTemplate } = await import("../agent/templates.ts");
      this.#found = findTemplate(id);
      return true;
    } catch (error) {
      // Mostly there is no network, and it was never needed before.
      console.warn("khala", "The agents can't be loaded.", error);
      return false;
    }
  }

  /** The template with this id, if it is loaded. */
  get(id: string | null): Template | null {
    return this.#found?.id === id ? this.#found : null;
  }
}
