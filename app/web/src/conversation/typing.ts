// Whether the person is typing, for the others in the chat to see.

const TYPING_MS = 4000;

export class Typing {
  readonly #announce: (typing: boolean) => void;
  #typing = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** `announce(typing)` tells the others, and is called only when it changes. */
  constructor(announce: (typing: boolean) => void) {
    this.#announce = announce;
  }

  /** The text was changed; `isEmpty` also when it was sent. Who changes nothing for four seconds is not typing. */
  typed(isEmpty: boolean): void {
    clearTimeout(this.#timer);
    if (!isEmpty) this.#timer = setTimeout(() => this.typed(true), TYPING_MS);
    if (this.#typing === !isEmpty) return;
    this.#typing = !isEmpty;
    this.#announce(this.#typing);
  }

  /** The chat was left, where nobody waits for it any more. */
  end(): void {
    clearTimeout(this.#timer);
    this.#typing = false;
  }
}
