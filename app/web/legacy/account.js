// Who is signed in on this browser. The cookie that says so can't be read, so the page keeps a note of its own beside it.

import * as chats from "./chats.js";
import { Refusal, call, insist, isPassing } from "./khala.js";

const NOTE = "khala.user";
const MOST_CLAIMS = 100;

/** The account, or null; when it changes, "khala-account" is dispatched on the window. */
export const account = { user: null };

/**
 * Read the note, and ask the server where it says that a login elsewhere was begun, unless that has failed. True if it
 * has signed us in.
 */
export async function begin(hasFailed) {
  addEventListener("storage", ({ key }) => (key === NOTE || key === null) && take(noted()?.id ? noted() : null));
  const note = noted();
  account.user = note?.id ? note : null;
  if (!note?.pending) return false;
  if (hasFailed) become(note.before ?? null);
  if (hasFailed) return false;
  try {
    become(await insist(() => call("GET", "/api/me"), { tries: 3 }));
  } catch (error) {
    if (!(error instanceof Refusal) && !isPassing(error)) throw error;
    become(null);
  }
  return account.user !== null;
}

function noted() {
  try {
    return JSON.parse(chats.kept(NOTE));
  } catch {
    return null;
  }
}

/** The browser leaves for an OpenID Provider and may come back signed in. */
export function expect() {
  chats.keep(NOTE, JSON.stringify({ pending: true, before: account.user }));
}

function become(user) {
  chats.keep(NOTE, user && JSON.stringify({ id: user.id, name: user.name, email: user.email }));
  take(user);
}

function take(user) {
  const before = account.user;
  account.user = user;
  if (before?.id !== user?.id || before?.name !== user?.name) dispatchEvent(new Event("khala-account"));
}

/** What people see of somebody: the name, or what the address begins with. */
export function nameOf(user) {
  return user.name ?? user.email?.split("@")[0] ?? "You";
}

/** The server has told that nobody is signed in. */
export function lose() {
  become(null);
}

/** How one can sign in here: `{registration, oidc?}`. */
export function ways() {
  return insist(() => call("GET", "/api/auth"), { tries: 3 });
}

/** Sign in ("login") or make an account ("register"), and take the browser's anonymous chats along, the open one first. */
export async function signIn(way, fields, openId) {
  const mine = chats.anonymous().sort((one, other) => (other.id === openId) - (one.id === openId));
  const first = mine.slice(0, MOST_CLAIMS);
  const { claimed, ...user } = await call("POST", `/api/auth/${way}`, { body: { ...fields, claim: first.map(keyed) } });
  settle(first, claimed ?? []);
  become(user);
  await claim(mine.slice(MOST_CLAIMS));
}

/** Make these anonymous chats the account's; the browser needs no key to them then. */
export async function claim(mine) {
  for (let at = 0; at < mine.length; at += MOST_CLAIMS) {
    const batch = mine.slice(at, at + MOST_CLAIMS);
    const { items } = await insist(() => call("POST", "/api/claims", { body: { items: batch.map(keyed) } }), { tries: 5 });
    settle(batch, items);
  }
}

function keyed({ id, key }) {
  return { threadId: id, anonKey: key };
}

/** What could not be claimed stays where it was, except for what is no more. */
function settle(mine, claimed) {
  const codes = new Map(claimed.map(({ threadId, code }) => [threadId, code ?? "ours"]));
  const gone = mine.filter(({ id }) => ["ours", "thread_not_found"].includes(codes.get(id)));
  for (const { id } of gone) chats.forget(id);
  giveTitles(gone.filter(({ id, title, named }) => codes.get(id) === "ours" && title && !named));
}

/** The page named them by itself; from now on the list names them, in every browser. */
async function giveTitles(mine) {
  for (const { id, title } of mine) await nameOnce(id, title);
}

/** Give a thread its title, which is no great loss if it fails. */
export async function nameOnce(id, title) {
  try {
    await insist(() => call("PATCH", `/api/threads/${id}`, { body: { title } }), { tries: 3 });
  } catch (error) {
    if (!(error instanceof Refusal) && !isPassing(error)) throw error;
  }
}

export async function rename(name) {
  become(await call("PATCH", "/api/me", { body: { name } }));
}

/** End the session; an address to go to, where the OpenID Provider has one to end it there, too. */
export async function signOut() {
  const { endSessionUrl } = await insist(() => call("POST", "/api/auth/logout"), { tries: 3 });
  become(null);
  return endSessionUrl;
}

export async function remove(password) {
  await call("DELETE", "/api/me", { body: password ? { password } : {} });
  become(null);
}
