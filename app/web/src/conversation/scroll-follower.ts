// Keeps the end of an area in sight: in small steps while an answer is written, else at once.

import { easedTop } from "./scrolling.ts";

const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

/** The part of an element that is used here. */
export type ScrollArea = { scrollTop: number; readonly scrollHeight: number; readonly clientHeight: number };

export class ScrollFollower {
  readonly #area: ScrollArea;
  readonly #moved: () => void;
  #frame = 0;
  #movedAt = 0;
  /** The position that was set last; browsers round what they return. */
  #top = 0;

  /** `moved` is called after each change of the position. */
  constructor(area: ScrollArea, moved: () => void) {
    this.#area = area;
    this.#moved = moved;
  }

  /** Goes to the end: in steps if `isSmooth` and the way is shorter than the area is high. */
  follow(isSmooth: boolean): void {
    const { scrollTop, scrollHeight, clientHeight } = this.#area;
    const isFar = scrollHeight - clientHeight - scrollTop > clientHeight;
    if (isSmooth && !isFar && !document.hidden && !reducedMotion.matches) return this.#start();
    this.stop();
    this.#area.scrollTop = scrollHeight;
    this.#moved();
  }

  stop(): void {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
  }

  #start(): void {
    if (this.#frame) return;
    this.#movedAt = performance.now();
    this.#top = this.#area.scrollTop;
    this.#frame = requestAnimationFrame(this.#move);
  }

  readonly #move = (now: number): void => {
    this.#frame = 0;
    const { scrollTop, scrollHeight, clientHeight } = this.#area;
    // The person has scrolled meanwhile; the event that says so is about to come.
    if (Math.abs(scrollTop - this.#top) > 2) return;
    const end = scrollHeight - clientHeight;
    this.#top = easedTop(Math.max(scrollTop, this.#top), end, now - this.#movedAt);
    this.#movedAt = now;
    this.#area.scrollTop = this.#top;
    this.#moved();
    if (this.#top < end) this.#frame = requestAnimationFrame(this.#move);
  };
}
