// Keeps the visible content in place when something above it changes its height.

/** Within this distance of the end, the view stays at the end. */
const NEAR_END_PX = 64;

/** The nearest scrolling ancestor of this element, or the page itself. */
export function scrollerOf(element: Element): HTMLElement {
  for (let one = element.parentElement; one; one = one.parentElement) {
    if (/^(auto|scroll)$/.test(getComputedStyle(one).overflowY)) return one;
  }
  return document.documentElement;
}

/** Scroll by `by` pixels because content above has grown, unless the browser's scroll anchoring does so. */
export function compensateScroll(scroller: HTMLElement, by: number): void {
  if (by !== 0 && getComputedStyle(scroller).overflowAnchor !== "auto") scroller.scrollTop += by;
}

/** Run `act`, which changes the height of an element, and keep the visible content or the end of the page in place. */
export function keepScrollPosition(element: Element, act: () => void): void {
  const scroller = scrollerOf(element);
  const isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END_PX;
  const before = element.getBoundingClientRect();
  const isAbove = before.bottom <= scroller.getBoundingClientRect().top;
  act();
  if (isAtEnd) scroller.scrollTop = scroller.scrollHeight;
  else if (isAbove) compensateScroll(scroller, element.getBoundingClientRect().height - before.height);
}
