// What a screen reader is told of answers: once that one begins, and once how it ended.

import type { MessageView, MessageDisplayStatus } from "../state/page-model.ts";

const SPOKEN = 200;
const ENDED: Partial<Record<MessageDisplayStatus, string>> = { done: "Answer complete.", stopped: "Answer stopped.", failed: "Answer failed." };

export class Teller {
  readonly #announce: (words: string) => void;
  #chat: string | null = null;
  #active: string | null = null;

  constructor(announce: (words: string) => void) {
    this.#announce = announce;
  }

  /** The answer that is being written in this chat, if one is; what went on before it was opened is not told. */
  see(chat: string | null, active: MessageView | null, find: (id: string) => MessageView | null): void {
    const [known, before, now] = [chat !== null && chat === this.#chat, this.#active, active?.id ?? null];
    this.#chat = chat;
    this.#active = now;
    if (!known || before === now) return;
    const ended = before === null ? null : find(before);
    const words = ended && ENDED[ended.displayStatus];
    if (words) this.#announce(`${words} ${ended.text.slice(0, SPOKEN)}`.trim());
    else if (now !== null) this.#announce("Khala is answering.");
  }
}
