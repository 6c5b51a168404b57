// Reports to the others in the chat whether the person is typing.

const TYPING_TIMEOUT_MS = 4000;

export class TypingStatus {
  readonly #announce: (typing: boolean) => void;
  #typing = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** `announce(typing)` is called only when the status changes. */
  constructor(announce: (typing: boolean) => void) {
    this.#announce = announce;
  }

  /** The text has changed; `isEmpty` also after it was sent. Typing ends four seconds after the last change. */
  typed(isEmpty: boolean): void {
    clearTimeout(this.#timer);
    if (!isEmpty) this.#timer = setTimeout(() => this.typed(true), TYPING_TIMEOUT_MS);
    if (this.#typing === !isEmpty) return;
    this.#typing = !isEmpty;
    this.#announce(this.#typing);
  }

  /** Stops without a report, because the chat was left. */
  end(): void {
    clearTimeout(this.#timer);
    this.#typing = false;
  }
}
