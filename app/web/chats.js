// The chats of this browser: id, key, title, kept in localStorage, one entry a chat so that two tabs never overwrite each other.

import { newId, newKey } from "./khala.js";

const PREFIX = "khala.chat.";
const LAST = "khala.last";
const TITLE_LENGTH = 48;
const memory = new Map();

/** A storage that always works; where the browser refuses one, this page remembers by itself until it is closed. */
function keep(name, value) {
  try {
    if (value === null) localStorage.removeItem(name);
    else localStorage.setItem(name, value);
  } catch {
    memory.set(name, value);
  }
}

function kept(name) {
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
  try {
    return JSON.parse(kept(PREFIX + id));
  } catch {
    return null;
  }
}

/** All chats of this browser, the one used last first. */
export function all() {
  const ids = names().filter((name) => name.startsWith(PREFIX));
  const chats = [...new Set(ids)].map((name) => find(name.slice(PREFIX.length)));
  return chats.filter((chat) => chat !== null).sort((one, other) => other.usedAt - one.usedAt);
}

/** A new chat, remembered before the server hears of it, so that asking again asks for the same one. */
export function add() {
  const chat = { id: newId(), key: newKey(), title: null, created: false, usedAt: Date.now() };
  return update(chat, {});
}

/** Change what is remembered of a chat, starting from what another tab may have written. */
export function update(chat, changes) {
  const changed = { ...(find(chat.id) ?? chat), ...changes };
  keep(PREFIX + chat.id, JSON.stringify(changed));
  return changed;
}

export function forget(id) {
  keep(PREFIX + id, null);
  memory.delete(PREFIX + id);
  if (last() === id) keep(LAST, null);
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
