// When the cards of a step are to be seen: while it runs, and after that for as long as the person wants to.

export const COLLAPSE_DELAY_MS = 2_000;

/** Whether a group is open. It folds away by itself a moment after its end, unless the person has touched it. */
export class AutoCollapse {
  #isOpen: boolean;
  #isTouched = false;
  #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #onCollapse: () => void;

  /** `hasEnded` at first sight: what is history already begins folded. `fold` is called when it folds by itself. */
  constructor(hasEnded: boolean, fold: () => void) {
    this.#isOpen = !hasEnded;
    this.#onCollapse = fold;
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Hear whether all calls have ended; a call that comes after puts the folding off. */
  update(hasEnded: boolean): void {
    if (!hasEnded) this.stop();
    else if (this.#isOpen && !this.#isTouched) this.#timer ??= setTimeout(() => this.#collapse(), COLLAPSE_DELAY_MS);
  }

  /** The person opens or closes the group, which stays so from now on. */
  toggle(): void {
    this.touch();
    this.#isOpen = !this.#isOpen;
  }

  /** The person does something inside: from now on it is theirs to close. */
  touch(): void {
    this.#isTouched = true;
    this.stop();
  }

  /** Nothing will happen by itself any more. */
  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #collapse(): void {
    this.#timer = undefined;
    this.#isOpen = false;
    this.#onCollapse();
  }
}
