// Keeps a popover beside its button.

import { menuPlace } from "./menu-place.ts";

/**
 * Keeps an open popover beside its button while the window or its content changes. What has no room in it is scrolled to in
 * `scroller`. Returns how to end that.
 */
export function keepBeside(anchor: Element, popover: HTMLElement, scroller = popover): () => void {
  function place(): void {
    const { width } = popover.getBoundingClientRect();
    // As high as it would be without the limit of an earlier place.
    const height = popover.offsetHeight - scroller.clientHeight + scroller.scrollHeight;
    const { top, left, maxHeight } = menuPlace(anchor.getBoundingClientRect(), { width, height }, {
      width: document.documentElement.clientWidth,
      height: innerHeight,
      isRightToLeft: document.documentElement.dir === "rtl",
    });
    Object.assign(popover.style, { top: `${top}px`, left: `${left}px`, maxHeight: `${maxHeight}px` });
  }

  // In the next frame: what a place changes may change what is observed.
  const watcher = new ResizeObserver(() => requestAnimationFrame(place));
  for (const element of [document.documentElement, ...scroller.children]) watcher.observe(element);
  place();
  return () => watcher.disconnect();
}
