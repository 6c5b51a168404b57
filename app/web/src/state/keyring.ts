// The chats that this browser has keys to. Each has its own entry in the storage, so that two tabs don't overwrite each other.

import { newId, newKey } from "@khala/client";
import type { ThreadKeys } from "./page-model.ts";
import type { BrowserStorage } from "../browser/browser-storage.ts";

const CHAT_PREFIX = "khala.chat.";
const IDENTITY_PREFIX = "khala.own.";
const LAST_CHAT_KEY = "khala.last";
const MAX_SENT_IDS = 20;
/** After this time, in ms, the server has deleted a temporary chat. */
const TEMPORARY_FOR = 2 * 24 * 3600 * 1000;

/** A chat as this browser knows it. `key` is its anonymous key, `shareKey` the key of a share link. Field names are a storage format. */
export type KnownChat = {
  id: string;
  title: string | null;
  created: boolean;
  usedAt?: number;
  key?: string;
  shareKey?: string;
  ownerId?: string;
  /** Whether the title is the chat's own, not one derived from its first message. */
  named?: boolean;
  /** Whether nobody has asked anything there, shared it or made a plan. Until the chat was open, it is unknown. */
  unused?: boolean;
  /** Where this browser keeps it on its list. */
  pinned?: boolean;
  archived?: boolean;
  folder?: string | null;
  /** Whether it is on no list, and the server deletes it after a day. */
  temporary?: boolean;
};

/** This browser's identity in a chat: its presence name, the author ids of its messages, and the ids of sent messages not seen yet. */
export type ChatIdentity = { name: string; authors: string[]; sent: string[] };

/** Whether an author has no account: the ids of keys' holders are UUIDs of version 5. */
export function isGuestId(authorId: string): boolean {
  return authorId[14] === "5";
}

type AuthoredMessage = { id: string; authorId?: string | undefined };

export class Keyring {
  readonly #storage: BrowserStorage;
  readonly #onChange: () => void;
  readonly #now: () => number;

  /** `onChange` is called after each change of the chats. */
  constructor(kept: BrowserStorage, changed: () => void, now: () => number = Date.now) {
    this.#storage = kept;
    this.#onChange = changed;
    this.#now = now;
  }

  /** The chat with this id; null if this browser has no key to it. */
  find(id: string): KnownChat | null {
    const found = this.#storage.read(CHAT_PREFIX + id);
    return isChat(found) ? found : null;
  }

  /** The chat with this id, as far as this browser knows it. */
  known(id: string): KnownChat {
    return this.find(id) ?? { id, title: null, created: true };
  }

  /** All chats of this browser except temporary ones, most recently used first. */
  all(): KnownChat[] {
    const chats = this.#stored().filter((chat) => !chat.temporary);
    return chats.sort((one, other) => (other.usedAt ?? 0) - (one.usedAt ?? 0));
  }

  #stored(): KnownChat[] {
    const ids = new Set(this.#storage.names().filter((name) => name.startsWith(CHAT_PREFIX)));
    return [...ids].map((name) => this.find(name.slice(CHAT_PREFIX.length))).filter((chat) => chat !== null);
  }

  /** Add a new chat. It is stored before the server creates it, so that a retry uses the same id and key. */
  add(ownerId?: string): KnownChat {
    const whose = ownerId ? { ownerId } : { key: newKey() };
    return this.update({ id: newId(), title: null, created: false, usedAt: this.#now(), ...whose }, {});
  }

  /** Add a new temporary chat, and forget those that the server has deleted. */
  addTemporary(ownerId?: string): KnownChat {
    const now = this.#now();
    for (const { id, temporary, usedAt = 0 } of this.#stored()) if (temporary && now - usedAt > TEMPORARY_FOR) this.forget(id);
    return this.update(this.add(ownerId), { temporary: true });
  }

  /** The chats of an account that the server has created, and not put into their folders yet. */
  unfiled(ownerId: string): KnownChat[] {
    return this.#stored().filter((chat) => chat.created && chat.ownerId === ownerId && chat.folder);
  }

  /** A chat of this account, or of this browser, that the server has not created yet. */
  findUncreated(ownerId?: string): KnownChat | null {
    return this.all().find((chat) => !chat.created && chat.ownerId === ownerId) ?? null;
  }

  /** Store the key of a share link. The browser's own key to a chat takes precedence. */
  addShared(id: string, shareKey: string): KnownChat {
    return this.update({ id, title: null, created: true, usedAt: this.#now() }, { shareKey });
  }

  /** The anonymous chats that an account can claim. */
  claimable(): (KnownChat & { key: string })[] {
    return this.all().filter((chat): chat is KnownChat & { key: string } => Boolean(chat.key) && chat.created);
  }

  /**
   * Mark a chat as created. A chat with an owner needs no key; one that the server created anonymously needs one. `isFiled`: the
   * account's list has it in its folder. If not, the folder stays here until it has.
   */
  markCreated(chat: KnownChat, made: { thread: { ownerId?: string }; anonKey?: string }, isFiled = true): KnownChat {
    const key = made.anonKey ?? chat.key;
    if (!made.thread.ownerId) return this.update(chat, { created: true, ...(key && { key }) }, ["ownerId"]);
    // The account's list has no temporary chat.
    if (chat.temporary) return this.update(chat, { created: true }, ["ownerId"]);
    if (!isFiled) return this.update(chat, { created: true, ownerId: made.thread.ownerId }, ["key"]);
    this.removeKeys(chat.id);
    return this.known(chat.id);
  }

  /** Change the stored entry of a chat, based on what another tab may have written. */
  update(chat: KnownChat, changes: Partial<KnownChat>, without: (keyof KnownChat)[] = []): KnownChat {
    const whole = { ...(this.find(chat.id) ?? chat), ...changes };
    const changed = Object.fromEntries(Object.entries(whole).filter(([name]) => !without.includes(name as keyof KnownChat))) as KnownChat;
    this.#storage.write(CHAT_PREFIX + chat.id, changed);
    this.#onChange();
    return changed;
  }

  /** Remove the keys. The chat may still be on the account's list. */
  removeKeys(id: string): void {
    this.#storage.set(CHAT_PREFIX + id, null);
    this.#onChange();
  }

  /** Remove everything that this browser has stored about the chat. */
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

  /** Learn our author ids from our own messages. Returns whether there was anything new. */
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

/** The access keys of a chat, as the client library takes them. */
export function keysOf({ key, shareKey }: KnownChat): ThreadKeys {
  return { ...(key && { anonKey: key }), ...(shareKey && { shareKey }) };
}

function isChat(found: unknown): found is KnownChat {
  return typeof found === "object" && found !== null && "id" in found && typeof found.id === "string";
}

function isIdentity(found: unknown): found is ChatIdentity {
  return typeof found === "object" && found !== null && "name" in found && "authors" in found && "sent" in found;
}
