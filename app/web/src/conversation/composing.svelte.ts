// What messages and the composer have to do with each other: a text goes back to be changed, a question is edited in place.

import type { BlobRef } from "../khala/frames.ts";

class Composing {
  /** The question that is edited in place. */
  editing: string | null = $state(null);
  /** What the composer shall take over next. */
  given: { text: string; files: readonly BlobRef[] } | null = $state.raw(null);

  /** The message that shall be shown, wherever it is in the open chat. */
  goal: string | null = $state(null);

  /** Put a text, and files that are uploaded already, into the composer. */
  put(text: string, files: readonly BlobRef[] = []): void {
    this.given = { text, files };
  }

  focus(): void {
    document.getElementById("text")?.focus({ preventScroll: true });
  }
}

export const composing = new Composing();
