// Decides when the cards of a step are shown: while it runs, and afterwards as long as the person wants.

export const COLLAPSE_DELAY_MS = 2_000;

/** Whether a group is open. It collapses by itself shortly after its end, unless the person has touched it. */
export class AutoCollapse {
  #isOpen: boolean;
  #isTouched = false;
  #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #onCollapse: () => void;

  /** A group that has ended at first sight starts collapsed. `onCollapse` is called when it collapses by itself. */
  constructor(hasEnded: boolean, fold: () => void) {
    this.#isOpen = !hasEnded;
    this.#onCollapse = fold;
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Update whether all calls have ended. A new call cancels the collapse. */
  update(hasEnded: boolean): void {
    if (!hasEnded) this.stop();
    else if (this.#isOpen && !this.#isTouched) this.#timer ??= setTimeout(() => this.#collapse(), COLLAPSE_DELAY_MS);
  }

  /** Open the group: a call in it waits for the person. */
  open(): void {
    this.stop();
    this.#isOpen = true;
  }

  /** Toggle the group for the person. It stays as it is from then on. */
  toggle(): void {
    this.touch();
    this.#isOpen = !this.#isOpen;
  }

  /** The person has done something inside: it does not collapse by itself any more. */
  touch(): void {
    this.#isTouched = true;
    this.stop();
  }

  /** Cancel a pending collapse. */
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
