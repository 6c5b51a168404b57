// Who else is here; and telling the others the same of us.

import type { Participant } from "./shape.ts";

const QUIET_MS = 2000;

type Said = Record<string, unknown> | null;

/** The others, each once, however many pages they have open; `name` is what our own pages go by here. */
export function others(participants: readonly Participant[], name: string, userId: string | null): Participant[] {
  const found = new Map<string, Participant>();
  for (const one of participants) {
    if (one.state.page === name || (userId !== null && one.userId === userId)) continue;
    const page = typeof one.state.page === "string" ? one.state.page : one.id;
    const who = one.userId ?? page;
    const typing = one.state.typing === true || found.get(who)?.state.typing === true;
    found.set(who, { ...one, id: who, state: { ...one.state, typing } });
  }
  return [...found.values()];
}

/** Tells that we are here, and what we do: coming and going at once, the rest at most every two seconds. */
export class OwnPresence {
  readonly #announce: (state: Said) => void;
  readonly #now: () => number;
  #name: string | null = null;
  #doing: Record<string, unknown> = {};
  #isHidden = false;
  #said: Said = null;
  #turnedAt = -Infinity;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(announce: (state: Said) => void, now: () => number = () => performance.now()) {
    this.#announce = announce;
    this.#now = now;
  }

  /** We look at a chat where we go by this name; null where nobody needs to know. */
  enter(name: string | null): void {
    if (name === this.#name) return;
    this.#name = name;
    this.#doing = {};
    this.#tell();
  }

  /** A chat was left; the feed tells that by itself. */
  leave(): void {
    clearTimeout(this.#timer);
    this.#name = this.#said = null;
    this.#doing = {};
  }

  do(state: Said): void {
    this.#doing = state ?? {};
    this.#tell();
  }

  hide(isHidden: boolean): void {
    this.#isHidden = isHidden;
    this.#tell();
  }

  #tell(): void {
    clearTimeout(this.#timer);
    const here = this.#name !== null && !this.#isHidden;
    const state = here ? { typing: false, ...this.#doing, page: this.#name } : null;
    if (JSON.stringify(state) === JSON.stringify(this.#said)) return;
    const wait = this.#turnedAt + QUIET_MS - this.#now();
    if (state && this.#said && wait > 0) {
      this.#timer = setTimeout(() => this.#tell(), wait);
      return;
    }
    if (state?.typing === true || this.#said?.typing === true) this.#turnedAt = this.#now();
    this.#said = state;
    this.#announce(state);
  }
}
