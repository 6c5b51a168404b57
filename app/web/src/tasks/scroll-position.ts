// What scrolls around an element, and how what is in sight stays where it is when something above it changes.

/** So near (px) to the end the newest stays in sight. */
const NEAR_END_PX = 64;

/** The nearest element around this one that scrolls, or the page itself. */
export function scrollerOf(element: Element): HTMLElement {
  for (let one = element.parentElement; one; one = one.parentElement) {
    if (/^(auto|scroll)$/.test(getComputedStyle(one).overflowY)) return one;
  }
  return document.documentElement;
}

/** Scroll by so much because something above what is in sight has grown; where the browser does that itself, it is left to it. */
export function compensateScroll(scroller: HTMLElement, by: number): void {
  if (by !== 0 && getComputedStyle(scroller).overflowAnchor !== "auto") scroller.scrollTop += by;
}

/** Let an element change its height by `act`: what is in sight below it stays in sight, and so does the end. */
export function keepScrollPosition(element: Element, act: () => void): void {
  const scroller = scrollerOf(element);
  const isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END_PX;
  const before = element.getBoundingClientRect();
  const isAbove = before.bottom <= scroller.getBoundingClientRect().top;
  act();
  if (isAtEnd) scroller.scrollTop = scroller.scrollHeight;
  else if (isAbove) compensateScroll(scroller, element.getBoundingClientRect().height - before.height);
}
