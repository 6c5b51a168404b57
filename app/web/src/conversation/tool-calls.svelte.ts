// The component that shows tool calls. It is loaded with the first call that is seen; from then on it is there at once.

import type ToolCallGroup from "../tasks/ToolCallGroup.svelte";

class ToolCalls {
  Group = $state.raw<typeof ToolCallGroup | null>(null);
  #isLoading = false;

  /** Load the component. If that fails, for example offline, `start.ts` says so in a toast, and the next call tries again. */
  async load(): Promise<void> {
    if (this.Group !== null || this.#isLoading) return;
    this.#isLoading = true;
    try {
      this.Group = (await import("../tasks/ToolCallGroup.svelte")).default;
    } catch (error) {
      console.error(error);
    } finally {
      this.#isLoading = false;
    }
  }
}

export const toolCalls = new ToolCalls();
