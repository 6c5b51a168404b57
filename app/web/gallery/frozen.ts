// Makes a frame show the same at every visit: fixed time and random numbers, a storage of its own, no network, no motion.

import { Random } from "./random.ts";

/** The time in each frame. */
export const NOW = Date.parse("2031-03-14T09:26:53Z");
/** Longer timers, such as those that close toasts, never end. Shorter ones, such as those after typing, end at once. */
const MAX_TIMER_MS = 1000;
const NO_TIMER = 0;
/** Workers that compute what a state shows. Without the others, the page shows what it knows itself. */
const WORKERS = ["detail"];

/** Freeze this frame. `name` is that of the state: states that differ in it differ in their ids. */
export function freeze(name: string): void {
  freezeTime();
  freezeRandomness(new Random(name));
  replace(globalThis, "localStorage", new MemoryStorage());
  replace(globalThis, "sessionStorage", new MemoryStorage());
  replace(globalThis, "indexedDB", undefined);
  // Locks are shared by all frames.
  replace(navigator, "locks", undefined);
  // Of all frames of a sheet one can have the focus.
  HTMLElement.prototype.focus = () => undefined;
  HTMLInputElement.prototype.select = () => undefined;
  // A dialog that opens gives the focus to one of its buttons or fields.
  addEventListener("focusin", ({ target }) => (target as HTMLElement).blur());
  // A sheet is far higher than the window.
  globalThis.IntersectionObserver = EverythingIsVisible;
  // Uploads use the responses of `fetch`.
  replace(globalThis, "XMLHttpRequest", undefined);
  globalThis.Worker = FrozenWorker;
}

/** Set a property that may be read-only. */
export function replace<T extends object, Name extends keyof T & string>(target: T, name: Name, value: T[Name] | undefined): void {
  if (value === undefined) Reflect.deleteProperty(target, name);
  if (value !== undefined || name in target) Object.defineProperty(target, name, { value, configurable: true, writable: true });
}

function freezeTime(): void {
  const RealDate = Date;
  globalThis.Date = new Proxy(RealDate, {
    construct: (target, given: unknown[], fresh) => Reflect.construct(target, given.length === 0 ? [NOW] : given, fresh) as object,
    apply: () => new RealDate(NOW).toString(),
    get: (target, name) => (name === "now" ? () => NOW : (Reflect.get(target, name) as unknown)),
  });
  const start = setTimeout.bind(globalThis);
  const startSoon = (act: TimerHandler, delay = 0, ...given: unknown[]): number => (delay < MAX_TIMER_MS ? start(act, Math.min(delay, 1), ...given) : NO_TIMER);
  replace(globalThis, "setTimeout", startSoon);
  replace(globalThis, "setInterval", () => NO_TIMER);
}

function freezeRandomness(random: Random): void {
  Math.random = () => random.next();
  crypto.getRandomValues = <T extends ArrayBufferView>(array: T): T => {
    new Uint8Array(array.buffer, array.byteOffset, array.byteLength).forEach((_, index, bytes) => (bytes[index] = Math.floor(random.next() * 256)));
    return array;
  };
}

class FrozenWorker extends Worker {
  constructor(url: string | URL, options?: WorkerOptions) {
    if (!WORKERS.includes(options?.name ?? "")) throw new Error("The gallery has no such worker.");
    super(url, options);
  }
}

class EverythingIsVisible extends IntersectionObserver {
  readonly #report: (targets: readonly Element[]) => void;

  constructor(report: IntersectionObserverCallback, options?: IntersectionObserverInit) {
    super(() => undefined, options);
    this.#report = (targets) => report(targets.map((target) => visible(target)), this);
  }

  override observe(target: Element): void {
    queueMicrotask(() => this.#report([target]));
  }
}

function visible(target: Element): IntersectionObserverEntry {
  const box = target.getBoundingClientRect();
  return { target, isIntersecting: true, intersectionRatio: 1, boundingClientRect: box, intersectionRect: box, rootBounds: null, time: NOW };
}

class MemoryStorage implements Storage {
  readonly #entries = new Map<string, string>();
  [name: string]: unknown;

  get length(): number {
    return this.#entries.size;
  }

  key(index: number): string | null {
    return [...this.#entries.keys()][index] ?? null;
  }

  getItem(key: string): string | null {
    return this.#entries.get(key) ?? null;
  }

  /** The page lists names by `Object.keys`. */
  setItem(key: string, value: string): void {
    this.#entries.set(key, value);
    this[key] = value;
  }

  removeItem(key: string): void {
    this.#entries.delete(key);
    Reflect.deleteProperty(this, key);
  }

  clear(): void {
    for (const key of this.#entries.keys()) this.removeItem(key);
  }
}
