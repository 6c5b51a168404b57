// Reveals an answer in each animation frame, at the rate at which it arrives, and at once where nobody watches it being written.

import type { Piece } from "./incremental-markdown.ts";
import type { MarkdownView } from "./markdown-view.ts";
import { afterShowing, dueCharacters, paceAfterArrival, START_PACE } from "./reveal-pace.ts";

/** The last character waits this long for what may join it, such as an accent or the rest of an emoji. */
const LAST_CHARACTER_MS = 700;

/** Displays that are faster than 60 Hz skip frames: each costs the main thread the same. */
const MIN_FRAME_MS = 12;

const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

export class TextReveal {
  readonly #view: MarkdownView;
  #pace = START_PACE;
  #isFirst = true;
  #frame = 0;
  #shownAt = 0;
  #lastTimer: ReturnType<typeof setTimeout> | undefined;

  constructor(view: MarkdownView) {
    this.#view = view;
    document.addEventListener("visibilitychange", this.#showHidden);
  }

  /** Shows what was shown or due before at once, and reveals the rest. The first text and a complete one are shown at once. */
  update(pieces: readonly Piece[], isComplete: boolean): void {
    const isInstant = isComplete || this.#isFirst || document.hidden || reducedMotion.matches;
    this.#isFirst = false;
    this.#stop();
    this.#view.update(pieces, isInstant);
    if (this.#view.pending === 0) return;
    this.#shownAt = performance.now();
    this.#pace = paceAfterArrival(this.#pace, this.#view.pending, this.#shownAt);
    this.#frame = requestAnimationFrame(this.#reveal);
  }

  destroy(): void {
    this.#stop();
    document.removeEventListener("visibilitychange", this.#showHidden);
  }

  readonly #reveal = (now: number): void => {
    if (now - this.#shownAt < MIN_FRAME_MS) return void (this.#frame = requestAnimationFrame(this.#reveal));
    const { count, pace } = dueCharacters(this.#pace, now - this.#shownAt);
    this.#shownAt = Math.max(this.#shownAt, now);
    const most = this.#view.pending - this.#view.lastCharacterLength;
    const shown = this.#view.reveal(Math.min(count, most));
    this.#pace = afterShowing(pace, count, shown);
    if (shown < most) this.#frame = requestAnimationFrame(this.#reveal);
    else this.#lastTimer = setTimeout(() => this.#view.reveal(Infinity), LAST_CHARACTER_MS);
  };

  readonly #showHidden = (): void => {
    if (!document.hidden) return;
    this.#stop();
    this.#view.reveal(Infinity);
  };

  #stop(): void {
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#lastTimer);
  }
}
