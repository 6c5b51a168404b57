// Runs work on an element once it is nearly visible.

const MARGIN = "400px";
const callbacks = new WeakMap<Element, () => void>();
const observer =
  typeof IntersectionObserver === "undefined" ? null : new IntersectionObserver((entries) => entries.forEach(onIntersection), { rootMargin: MARGIN, scrollMargin: MARGIN });

function onIntersection({ isIntersecting, target }: IntersectionObserverEntry): void {
  if (!isIntersecting) return;
  observer?.unobserve(target);
  callbacks.get(target)?.();
}

/** Calls `act` once the element is nearly visible; at once in browsers without IntersectionObserver. */
export function onceVisible(element: Element, act: () => void): void {
  if (!observer) return act();
  callbacks.set(element, act);
  observer.observe(element);
}

/** Cancels `onceVisible` for this element. */
export function cancelOnceVisible(element: Element): void {
  callbacks.delete(element);
  observer?.unobserve(element);
}
