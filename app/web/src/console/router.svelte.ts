// The console's address: `/console/{view}/{id}` and the filters of the view as its query.

import { BASE, changeQuery, parameterOf } from "./paths.ts";

export { pathOf } from "./paths.ts";

class Router {
  #url = $state.raw(new URL(location.href));
  /** The segments after `/console`; empty for the overview. */
  readonly segments: readonly string[] = $derived(this.#url.pathname.slice(BASE.length).split("/").filter(Boolean).map(decodeSegment));
  readonly query: string = $derived(this.#url.search);

  /** A filter in the address; empty if it is not set. */
  filter(name: string): string {
    return parameterOf(this.query, name);
  }

  /** Open another address of the console. */
  open(path: string): void {
    history.pushState(null, "", path);
    this.#url = new URL(location.href);
  }

  /** Change filters in place; an empty value removes its filter. */
  setFilters(changes: Readonly<Record<string, string>>): void {
    history.replaceState(null, "", this.#url.pathname + changeQuery(this.query, changes));
    this.#url = new URL(location.href);
  }

  /** Follow the browser's history, and open links of the console without a reload. Returns a function that ends this. */
  listen(): () => void {
    const restore = () => (this.#url = new URL(location.href));
    const follow = (event: MouseEvent) => this.#follow(event);
    addEventListener("popstate", restore);
    addEventListener("click", follow);
    return () => {
      removeEventListener("popstate", restore);
      removeEventListener("click", follow);
    };
  }

  #follow(event: MouseEvent): void {
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    const isPlain = event.button === 0 && !(event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
    if (link === null || !isPlain || event.defaultPrevented || link.target !== "" || !isConsolePath(link)) return;
    event.preventDefault();
    this.open(link.pathname + link.search);
  }
}

function isConsolePath({ origin, pathname }: HTMLAnchorElement): boolean {
  return origin === location.origin && (pathname === BASE || pathname.startsWith(`${BASE}/`));
}

function decodeSegment(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment; // not an encoding of anything; the view says that it finds nothing
  }
}

export const router = new Router();
