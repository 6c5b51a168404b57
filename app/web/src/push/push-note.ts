// What this browser has stored of its subscription to notifications: for whom it is on, and when it was confirmed.

import type { BrowserStorage } from "../browser/browser-storage.ts";
import { PUSH_STORAGE_KEY } from "../browser/push-account.ts";

/** A subscription is confirmed at the next visit after this time. The server deletes one that is not confirmed for 90 days. */
const CONFIRM_AFTER_MS = 24 * 3_600_000;
/** Guests' chats have a subscription each. */
const MAX_CONFIRMED = 100;

/** Field names are a storage format. `people`: the accounts for which it is on; "" for all chats as a guest. */
type StoredNote = { people: string[]; answers: boolean; dismissed: boolean; confirmed: Record<string, { id: string; at: number; language: string }> };

export class PushNote {
  readonly #storage: BrowserStorage;
  readonly #now: () => number;

  constructor(storage: BrowserStorage, now: () => number = Date.now) {
    this.#storage = storage;
    this.#now = now;
  }

  #read(): StoredNote {
    const found = this.#storage.read(PUSH_STORAGE_KEY) as Partial<StoredNote> | null;
    return { people: found?.people ?? [], answers: found?.answers === true, dismissed: found?.dismissed === true, confirmed: found?.confirmed ?? {} };
  }

  #change(changes: Partial<StoredNote>): void {
    this.#storage.write(PUSH_STORAGE_KEY, { ...this.#read(), ...changes });
  }

  /** Whether long answers are told, too. */
  get answers(): boolean {
    return this.#read().answers;
  }

  /** Whether the person has declined the offer. */
  get isDismissed(): boolean {
    return this.#read().dismissed;
  }

  dismiss(): void {
    this.#change({ dismissed: true });
  }

  isOnFor(person: string): boolean {
    return this.#read().people.includes(person);
  }

  turnOn(person: string, answers: boolean): void {
    this.#change({ people: [...new Set([...this.#read().people, person])], answers, confirmed: {} });
  }

  /** Turn it off for everybody: the browser's subscription ends. Returns the ids of the subscriptions by their owners. */
  turnOff(): Record<string, string> {
    const { confirmed } = this.#read();
    this.#change({ people: [], confirmed: {} });
    return Object.fromEntries(Object.entries(confirmed).map(([owner, { id }]) => [owner, id]));
  }

  /** Whether the server should be told again, for this owner and in this language. */
  isDue(owner: string, language: string): boolean {
    const last = this.#read().confirmed[owner];
    return last?.language !== language || this.#now() - last.at > CONFIRM_AFTER_MS;
  }

  confirm(owner: string, id: string, language: string): void {
    const others = Object.entries(this.#read().confirmed).filter(([known]) => known !== owner).slice(1 - MAX_CONFIRMED);
    this.#change({ confirmed: Object.fromEntries([...others, [owner, { id, at: this.#now(), language }]]) });
  }
}
