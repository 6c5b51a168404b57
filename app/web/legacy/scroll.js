// Scrolling: the newest stays in sight unless the person went elsewhere.

const NEAR_END = 64;

export class Scroller {
  #area;
  #button;
  following = true;

  constructor(area, button) {
    this.#area = area;
    this.#button = button;
    area.addEventListener("scroll", () => this.notice(), { passive: true });
    button.addEventListener("click", () => this.#jump());
    new ResizeObserver(() => this.follow()).observe(area);
  }

  /** How far what is in sight is from the end; it stays so when older messages come in above. */
  fromEnd() {
    return this.#area.scrollHeight - this.#area.scrollTop;
  }

  follow() {
    if (this.following) this.#area.scrollTop = this.#area.scrollHeight;
    this.#button.hidden = this.following;
  }

  keep(fromEnd) {
    this.following = false;
    requestAnimationFrame(() => (this.#area.scrollTop = this.#area.scrollHeight - fromEnd));
  }

  /** Fold something away: what is in sight below it stays where it is. */
  folding(element, act) {
    const isAbove = element.getBoundingClientRect().bottom < this.#area.getBoundingClientRect().top;
    const fromEnd = this.fromEnd();
    act();
    if (this.following) this.follow();
    else if (isAbove) this.#area.scrollTop = this.#area.scrollHeight - fromEnd;
  }

  /** What is in sight may be another part of it now. */
  notice() {
    this.following = this.fromEnd() - this.#area.clientHeight < NEAR_END;
    this.#button.hidden = this.following;
  }

  #jump() {
    this.following = true;
    const behavior = matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
    this.#area.scrollTo({ top: this.#area.scrollHeight, behavior });
  }
}
