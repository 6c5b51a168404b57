// The chats that this browser has keys to: kept in localStorage, one entry a chat so that two tabs never overwrite each other.

import { newId, newKey } from "./khala.js";

const PREFIX = "khala.chat.";
const OWN = "khala.own.";
const MOST_SENT = 20;
const LAST = "khala.last";
const TITLE_LENGTH = 48;
const memory = new Map();

/** A storage that always works; where the browser refuses one, this page remembers by itself until it is closed. */
export function keep(name, value) {
  memory.delete(name);
  try {
    if (value === null) localStorage.removeItem(name);
    else localStorage.setItem(name, value);
  } catch {
    memory.set(name, value);
  }
}

export function kept(name) {
  try {
    return localStorage.getItem(name) ?? memory.get(name) ?? null;
  } catch {
    return memory.get(name) ?? null;
  }
}

function names() {
  try {
    return [...Object.keys(localStorage), ...memory.keys()];
  } catch {
    return [...memory.keys()];
  }
}

/** The chat with this id, or null if this browser has no key to it. */
export function find(id) {
  return parsed(kept(PREFIX + id));
}

/** The chat of this id, by what this browser knows of it: perhaps nothing but that. */
export function known(id) {
  return find(id) ?? { id, title: null, created: true };
}

/** All chats of this browser, the one used last first. */
export function all() {
  const ids = names().filter((name) => name.startsWith(PREFIX));
  const chats = [...new Set(ids)].map((name) => find(name.slice(PREFIX.length)));
  return chats.filter((chat) => chat !== null).sort((one, other) => other.usedAt - one.usedAt);
}

/** What names this browser in requests about the chat: its keys, whichever it has. */
export function keysOf({ key, shareKey }) {
  return { ...(key && { key }), ...(shareKey && { shareKey }) };
}

/** A new chat, remembered before the server hears of it, so that asking again asks for the same one. */
export function add(ownerId) {
  const chat = { id: newId(), title: null, created: false, usedAt: Date.now(), ...(ownerId ? { ownerId } : { key: newKey() }) };
  return update(chat, {});
}

/** A chat of this address that the server has not made yet, if there is one: of this account, or of this browser. */
export function unmade(ownerId) {
  return all().find((chat) => !chat.created && chat.ownerId === ownerId) ?? null;
}

/** Remember the key of a share link; a chat of this browser's own has a better one. */
export function addShared(id, shareKey) {
  return update({ id, title: null, created: true, usedAt: Date.now() }, { shareKey });
}

/** The chats that can be claimed. */
export function anonymous() {
  return all().filter((chat) => chat.key && chat.created);
}

/** The server has made it. An account's needs no key; one that was made while nobody was signed in, whatever we thought, does. */
export function settleMade(chat, { thread, anonKey }) {
  if (!thread.ownerId) return update(chat, { created: true, ownerId: undefined, key: anonKey ?? chat.key });
  forget(chat.id);
  return known(chat.id);
}

/** Change what is remembered of a chat, starting from what another tab may have written. */
export function update(chat, changes) {
  const changed = { ...(find(chat.id) ?? chat), ...changes };
  keep(PREFIX + chat.id, JSON.stringify(changed));
  return changed;
}

/** Forget the keys; whoever is signed in may have the chat on their list all the same. */
export function forget(id) {
  keep(PREFIX + id, null);
}

/** Forget all that could tell anybody of the chat. */
export function forgetAll(id) {
  forget(id);
  keep(OWN + id, null);
  if (last() === id) keep(LAST, null);
}

/** What this browser is in a chat: who its messages are by, those of them not seen in the chat yet, and a name for it. */
export function own(id) {
  const known = parsed(kept(OWN + id));
  if (known) return known;
  const fresh = { name: newId(), authors: [], sent: [] };
  keep(OWN + id, JSON.stringify(fresh));
  return fresh;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

export function noteSent(id, messageId) {
  const mine = own(id);
  keep(OWN + id, JSON.stringify({ ...mine, sent: [...mine.sent, messageId].slice(-MOST_SENT) }));
}

/** Learn from messages that have come back who ours are by. */
export function noteAuthors(id, messages) {
  const mine = own(id);
  if (!mine.sent.length) return;
  const back = messages.filter((message) => mine.sent.includes(message.id));
  const authors = [...new Set([...mine.authors, ...back.map((message) => message.authorId).filter(Boolean)])];
  const sent = mine.sent.filter((messageId) => !back.some((message) => message.id === messageId));
  if (back.length) keep(OWN + id, JSON.stringify({ ...mine, authors, sent }));
}

/** The id of the chat that was open last. */
export function last() {
  return kept(LAST);
}

export function open(id) {
  keep(LAST, id);
}

/** The first words of a text, as a title. */
export function titleFrom(text) {
  const line = text.trim().replace(/\s+/g, " ");
  if (line.length <= TITLE_LENGTH) return line || null;
  return `${line.slice(0, TITLE_LENGTH).replace(/\s+\S*$/, "")} …`;
}
