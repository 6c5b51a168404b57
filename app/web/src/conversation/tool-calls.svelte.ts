// The component that shows tool calls. It is loaded with the first call that is seen; from then on it is there at once.

import type ToolCallGroup from "../tasks/ToolCallGroup.svelte";

class ToolCalls {
  Group = $state.raw<typeof ToolCallGroup | null>(null);
  #loading: Promise<void> | null = null;

  /** Load the component. If that fails, for example offline, `start.ts` says so in a toast, and the next call tries again. */
  load(): void {
    if (this.Group !== null) return;
    this.#loading ??= import("../tasks/ToolCallGroup.svelte").then(
      ({ default: Group }) => void (this.Group = Group),
      (error: unknown) => {
        this.#loading = null;
        console.error(error);
      },
    );
  }
}

export const toolCalls = new ToolCalls();
