// The chats that this browser has keys to: kept in its storage, one entry a chat so that two tabs never overwrite each other.

import { newId, newKey } from "../khala/ids.ts";
import type { ThreadKeys } from "./page-model.ts";
import type { BrowserStorage } from "./browser-storage.ts";

const CHAT_PREFIX = "khala.chat.";
const IDENTITY_PREFIX = "khala.own.";
const LAST_CHAT_KEY = "khala.last";
const MAX_SENT_IDS = 20;
const MAX_TITLE_CHARACTERS = 48;

/** A chat as this browser knows it. `key` opens it for whoever made it anonymously, `shareKey` for whoever has a link. */
export type KnownChat = {
  id: string;
  title: string | null;
  created: boolean;
  usedAt?: number;
  key?: string;
  shareKey?: string;
  ownerId?: string;
  /** Whether the title is the chat's own and no guess of ours. */
  named?: boolean;
};

/** What this browser is in a chat: a name for it, who its messages are by, and those of them not seen in the chat yet. */
export type ChatIdentity = { name: string; authors: string[]; sent: string[] };

type AuthoredMessage = { id: string; authorId?: string | undefined };

export class Keyring {
  readonly #storage: BrowserStorage;
  readonly #onChange: () => void;
  readonly #now: () => number;

  /** `changed()` is told of each change of the chats. */
  constructor(kept: BrowserStorage, changed: () => void, now: () => number = Date.now) {
    this.#storage = kept;
    this.#onChange = changed;
    this.#now = now;
  }

  /** The chat with this id, or null if this browser has no key to it. */
  find(id: string): KnownChat | null {
    const found = this.#storage.read(CHAT_PREFIX + id);
    return isChat(found) ? found : null;
  }

  /** The chat of this id, by what this browser knows of it: perhaps nothing but that. */
  known(id: string): KnownChat {
    return this.find(id) ?? { id, title: null, created: true };
  }

  /** All chats of this browser, the one used last first. */
  all(): KnownChat[] {
    const ids = new Set(this.#storage.names().filter((name) => name.startsWith(CHAT_PREFIX)));
    const chats = [...ids].map((name) => this.find(name.slice(CHAT_PREFIX.length))).filter((chat) => chat !== null);
    return chats.sort((one, other) => (other.usedAt ?? 0) - (one.usedAt ?? 0));
  }

  /** A new chat, remembered before the server hears of it, so that asking again asks for the same one. */
  add(ownerId?: string): KnownChat {
    const whose = ownerId ? { ownerId } : { key: newKey() };
    return this.update({ id: newId(), title: null, created: false, usedAt: this.#now(), ...whose }, {});
  }

  /** A chat that the server has not made yet, if there is one: of this account, or of this browser. */
  findUncreated(ownerId?: string): KnownChat | null {
    return this.all().find((chat) => !chat.created && chat.ownerId === ownerId) ?? null;
  }

  /** Remember the key of a share link; a chat of this browser's own has a better one. */
  addShared(id: string, shareKey: string): KnownChat {
    return this.update({ id, title: null, created: true, usedAt: this.#now() }, { shareKey });
  }

  /** The chats that can be claimed. */
  claimable(): (KnownChat & { key: string })[] {
    return this.all().filter((chat): chat is KnownChat & { key: string } => Boolean(chat.key) && chat.created);
  }

  /** The server has made it. An account's needs no key; one that was made while nobody was signed in, whatever we thought, does. */
  markCreated(chat: KnownChat, made: { thread: { ownerId?: string }; anonKey?: string }): KnownChat {
    const key = made.anonKey ?? chat.key;
    if (!made.thread.ownerId) return this.update(chat, { created: true, ...(key && { key }) }, ["ownerId"]);
    this.removeKeys(chat.id);
    return this.known(chat.id);
  }

  /** Change what is remembered of a chat, starting from what another tab may have written. */
  update(chat: KnownChat, changes: Partial<KnownChat>, without: (keyof KnownChat)[] = []): KnownChat {
    const whole = { ...(this.find(chat.id) ?? chat), ...changes };
    const changed = Object.fromEntries(Object.entries(whole).filter(([name]) => !without.includes(name as keyof KnownChat))) as KnownChat;
    this.#storage.write(CHAT_PREFIX + chat.id, changed);
    this.#onChange();
    return changed;
  }

  /** Forget the keys; whoever is signed in may have the chat on their list all the same. */
  removeKeys(id: string): void {
    this.#storage.set(CHAT_PREFIX + id, null);
    this.#onChange();
  }

  /** Forget all that could tell anybody of the chat. */
  forget(id: string): void {
    this.#storage.set(IDENTITY_PREFIX + id, null);
    if (this.last === id) this.#storage.set(LAST_CHAT_KEY, null);
    this.removeKeys(id);
  }

  identityIn(id: string): ChatIdentity {
    const known = this.#storage.read(IDENTITY_PREFIX + id);
    if (isIdentity(known)) return known;
    const fresh: ChatIdentity = { name: newId(), authors: [], sent: [] };
    this.#storage.write(IDENTITY_PREFIX + id, fresh);
    return fresh;
  }

  recordSent(id: string, messageId: string): void {
    const mine = this.identityIn(id);
    this.#storage.write(IDENTITY_PREFIX + id, { ...mine, sent: [...mine.sent, messageId].slice(-MAX_SENT_IDS) });
  }

  /** Learn from messages that have come back who ours are by; whether anything was learnt. */
  recordAuthors(id: string, messages: readonly AuthoredMessage[]): boolean {
    const mine = this.identityIn(id);
    const back = messages.filter((message) => mine.sent.includes(message.id));
    if (back.length === 0) return false;
    const theirs = back.map((message) => message.authorId).filter((author) => author !== undefined);
    const sent = mine.sent.filter((messageId) => !back.some((message) => message.id === messageId));
    this.#storage.write(IDENTITY_PREFIX + id, { ...mine, authors: [...new Set([...mine.authors, ...theirs])], sent });
    return true;
  }

  /** The id of the chat that was open last. */
  get last(): string | null {
    return this.#storage.get(LAST_CHAT_KEY);
  }

  setLast(id: string): void {
    this.#storage.set(LAST_CHAT_KEY, id);
  }
}

/** What opens a chat, as `khala/` wants it. */
export function keysOf({ key, shareKey }: KnownChat): ThreadKeys {
  return { ...(key && { anonKey: key }), ...(shareKey && { shareKey }) };
}

/** The first words of a text, as a title; null if it has none. */
export function titleFrom(text: string): string | null {
  const line = text.trim().replace(/\s+/g, " ");
  if (line.length <= MAX_TITLE_CHARACTERS) return line || null;
  return `${line.slice(0, MAX_TITLE_CHARACTERS).replace(/\s+\S*$/, "")}…`;
}

function isChat(found: unknown): found is KnownChat {
  return typeof found === "object" && found !== null && "id" in found && typeof found.id === "string";
}

function isIdentity(found: unknown): found is ChatIdentity {
  return typeof found === "object" && found !== null && "name" in found && "authors" in found && "sent" in found;
}
