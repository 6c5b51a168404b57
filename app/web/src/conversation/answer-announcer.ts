// Screen-reader announcements of answers: one when an answer starts, and one when it ends.

import type { MessageView, MessageDisplayStatus } from "../state/page-model.ts";
import { failureLabel } from "./failure-labels.ts";
import { m } from "../i18n/messages.ts";

const MAX_SPOKEN_CHARACTERS = 200;
const END_LABELS: Partial<Record<MessageDisplayStatus, string>> = { done: m.answer_complete(), stopped: m.answer_stopped(), failed: m.answer_failed() };

export class AnswerAnnouncer {
  readonly #announce: (words: string) => void;
  #chat: string | null = null;
  #active: string | null = null;

  constructor(announce: (words: string) => void) {
    this.#announce = announce;
  }

  /** Passes in the running answer of the open chat, or null. An answer that ran before the chat was opened is not announced. */
  update(chat: string | null, active: MessageView | null, find: (id: string) => MessageView | null): void {
    const [known, before, now] = [chat !== null && chat === this.#chat, this.#active, active?.id ?? null];
    this.#chat = chat;
    this.#active = now;
    if (!known || before === now) return;
    const ended = before === null ? null : find(before);
    const words = ended && END_LABELS[ended.displayStatus];
    if (words) this.#announce(`${words} ${spokenText(ended)}`.trim());
    else if (now !== null) this.#announce(m.khala_is_answering());
  }
}

/** Why an answer failed, in the words of its footer; otherwise the beginning of its text. */
function spokenText({ displayStatus, error, text }: MessageView): string {
  return displayStatus === "failed" && error ? failureLabel(error) : text.slice(0, MAX_SPOKEN_CHARACTERS);
}
