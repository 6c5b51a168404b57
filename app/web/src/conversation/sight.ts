// What is done to an element only once it is about to be seen.

const AHEAD = "400px";
const acts = new WeakMap<Element, () => void>();
const sight =
  typeof IntersectionObserver === "undefined" ? null : new IntersectionObserver((entries) => entries.forEach(notice), { rootMargin: AHEAD, scrollMargin: AHEAD });

function notice({ isIntersecting, target }: IntersectionObserverEntry): void {
  if (!isIntersecting) return;
  sight?.unobserve(target);
  acts.get(target)?.();
}

/** Do this once the element is near to what is in sight; at once where nobody can tell. */
export function whenSeen(element: Element, act: () => void): void {
  if (!sight) return act();
  acts.set(element, act);
  sight.observe(element);
}

/** It is gone, or needs it no longer. */
export function unwatch(element: Element): void {
  acts.delete(element);
  sight?.unobserve(element);
}
