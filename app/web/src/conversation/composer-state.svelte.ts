// State that messages and the composer share: text for the composer, the question being edited, the message to scroll to.

import type { BlobRef } from "@khala/client";
import { loadDraft, saveDraft } from "./drafts.ts";

/** The message form of a chat that is on the page. */
type MessageForm = { chatId: string; change: (edit: (text: string) => string) => void };

class ComposerState {
  /** The id of the question that is being edited in place. */
  editingId: string | null = $state(null);
  /** Text and files for the composer to take over. A quote comes before the text that is there; other text takes its place. */
  pending: { text: string; files: readonly BlobRef[]; isQuote?: boolean } | null = $state.raw(null);

  /** Called once, after the next message is sent. */
  afterSend: (() => void) | null = null;

  /** The id of the message to scroll to. */
  targetMessageId: string | null = $state(null);

  #form: MessageForm | null = null;

  /** A message form is on the page until the returned function is called. */
  mount(form: MessageForm): () => void {
    this.#form = form;
    return () => {
      if (this.#form === form) this.#form = null;
    };
  }

  /** Change the draft of a chat: in its form if that is on the page, else where drafts are stored. */
  changeDraft(chatId: string, edit: (text: string) => string): void {
    if (this.#form?.chatId === chatId) this.#form.change(edit);
    else saveDraft(chatId, edit(loadDraft(chatId)));
  }

  /** Puts a text and uploaded files into the composer. */
  fill(text: string, files: readonly BlobRef[] = []): void {
    this.pending = { text, files };
  }

  /** Quotes a passage in the composer. */
  quote(passage: string): void {
    this.pending = { text: `${passage.replaceAll(/^/gm, "> ")}\n\n`, files: [], isQuote: true };
  }

  focus(): void {
    document.getElementById("text")?.focus({ preventScroll: true });
  }
}

export const composerState = new ComposerState();
