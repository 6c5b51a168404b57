// Presence: the other participants of a chat, and our own presence for them.

import { tidyName } from "./guest-name.svelte.ts";
import type { Participant } from "./page-model.ts";

const MIN_UPDATE_INTERVAL_MS = 2000;

type PresenceState = Record<string, unknown> | null;

/** The other participants, each once, however many pages they have open. `name` is the presence name of our own pages. */
export function otherParticipants(participants: readonly Participant[], name: string, userId: string | null): Participant[] {
  const found = new Map<string, Participant>();
  for (const one of participants) {
    if (one.state.page === name || (userId !== null && one.userId === userId)) continue;
    const page = typeof one.state.page === "string" ? one.state.page : one.id;
    const who = one.userId ?? page;
    const typing = one.state.typing === true || found.get(who)?.state.typing === true;
    const given = one.name ?? guestNameIn(one.state);
    found.set(who, { ...one, ...(given && { name: given }), id: who, state: { ...one.state, typing } });
  }
  return [...found.values()];
}

/** The name that a guest gives. It proves nothing, as every name without an account. */
function guestNameIn({ name }: Record<string, unknown>): string {
  return typeof name === "string" ? tidyName(name) : "";
}

/** Reports our own presence: entering and leaving at once, other changes at most every two seconds. */
export class OwnPresence {
  readonly #announce: (state: PresenceState) => void;
  readonly #now: () => number;
  #name: string | null = null;
  #guestName = "";
  #activity: Record<string, unknown> = {};
  #isHidden = false;
  #announced: PresenceState = null;
  #typingChangedAt = -Infinity;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(announce: (state: PresenceState) => void, now: () => number = () => performance.now()) {
    this.#announce = announce;
    this.#now = now;
  }

  /** Enter a chat under this presence name; null if nobody else can see the chat. `guestName` is the name that a guest gives. */
  enter(name: string | null, guestName = ""): void {
    if (name === this.#name && guestName === this.#guestName) return;
    if (name !== this.#name) this.#activity = {};
    this.#name = name;
    this.#guestName = guestName;
    this.#update();
  }

  /** Leave the chat. The realtime client reports that by itself. */
  leave(): void {
    clearTimeout(this.#timer);
    this.#name = this.#announced = null;
    this.#activity = {};
  }

  setActivity(state: PresenceState): void {
    this.#activity = state ?? {};
    this.#update();
  }

  setHidden(isHidden: boolean): void {
    this.#isHidden = isHidden;
    this.#update();
  }

  #update(): void {
    clearTimeout(this.#timer);
    const here = this.#name !== null && !this.#isHidden;
    const state = here ? { typing: false, ...this.#activity, page: this.#name, ...(this.#guestName && { name: this.#guestName }) } : null;
    if (JSON.stringify(state) === JSON.stringify(this.#announced)) return;
    const wait = this.#typingChangedAt + MIN_UPDATE_INTERVAL_MS - this.#now();
    if (state && this.#announced && wait > 0) {
      this.#timer = setTimeout(() => this.#update(), wait);
      return;
    }
    if (state?.typing === true || this.#announced?.typing === true) this.#typingChangedAt = this.#now();
    this.#announced = state;
    this.#announce(state);
  }
}
