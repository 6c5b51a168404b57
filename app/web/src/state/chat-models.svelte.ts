// The model that a person has chosen for a chat, by the id of the chat, kept in the browser's storage.

import type { BrowserStorage } from "../browser/browser-storage.ts";

const STORAGE_KEY = "khala.models";
/** Beyond this number of chats the choice that was made first is dropped. */
const MAX_CHATS = 200;

/** Pairs of a chat and its model, the oldest choice first. */
type Choices = readonly (readonly [chatId: string, model: string])[];

export class ChatModels {
  readonly #storage: BrowserStorage;
  #chosen: Choices;

  constructor(storage: BrowserStorage) {
    this.#storage = storage;
    this.#chosen = $state.raw(parseChoices(storage.read(STORAGE_KEY)));
  }

  /** Read the choices again, which another tab may have changed. */
  reload(): void {
    this.#chosen = parseChoices(this.#storage.read(STORAGE_KEY));
  }

  /** The chosen model of a chat, `provider:name`; null if the server chooses. */
  of(chatId: string): string | null {
    return this.#chosen.find(([id]) => id === chatId)?.[1] ?? null;
  }

  /** Choose a model; null leaves the choice to the server. */
  choose(chatId: string, model: string | null): void {
    const others = parseChoices(this.#storage.read(STORAGE_KEY)).filter(([id]) => id !== chatId);
    this.#chosen = model === null ? others : [...others, [chatId, model] as const].slice(-MAX_CHATS);
    this.#storage.write(STORAGE_KEY, this.#chosen);
  }
}

function parseChoices(found: unknown): Choices {
  const pairs: readonly unknown[] = Array.isArray(found) ? found : [];
  const isPair = (pair: unknown): pair is [string, string] => Array.isArray(pair) && pair.length === 2 && pair.every((one) => typeof one === "string");
  return pairs.filter(isPair);
}
