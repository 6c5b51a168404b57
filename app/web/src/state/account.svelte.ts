// Who is signed in on this browser. The cookie that says so can't be read, so the page keeps a note of its own beside it.

import type { Claimed, KeyedThread, SignedIn, SignedOut, User, Ways as Told } from "../khala/frames.ts";
import { request, withRetry, isRequestError } from "../khala/requests.ts";
import type { Keyring, KnownChat } from "./keyring.ts";
import type { Kept } from "./storage.ts";
import type { Account, Ways } from "./shape.ts";

export const NOTE = "khala.user";
const MOST_CLAIMS = 100;

type Anonymous = KnownChat & { key: string };
/** What is noted: an account, or that the browser has left to sign in elsewhere, and who it was before. */
type Note = { id?: string; name?: string; email?: string; pending?: true; before?: User | null };

/** What signing in and out has to reach of the page. */
export interface AccountPage {
  /** Do what changes who we are, as `Feed.as`. */
  as<Result>(change: () => Promise<Result>): Promise<Result>;
  /** Somebody else, or nobody, is signed in by now; `before` was. */
  turned(before: User | null): void;
  /** The account ends here by the person's own wish: nothing that only it could open may stay in sight. */
  leaves(): void;
  openId(): string | null;
  claimed(): void;
}

export class BrowserAccount implements Account {
  readonly #kept: Kept;
  readonly #keyring: Keyring;
  readonly #page: AccountPage;
  #user: User | null = $state.raw(null);

  constructor(kept: Kept, keyring: Keyring, page: AccountPage) {
    this.#kept = kept;
    this.#keyring = keyring;
    this.#page = page;
  }

  get user(): User | null {
    return this.#user;
  }

  /** What people see of it: the name, or what the address begins with. */
  get name(): string {
    return this.#user ? (this.#user.name ?? this.#user.email?.split("@")[0] ?? "You") : "";
  }

  /**
   * Read the note, and ask the server where it says that a login elsewhere was begun, unless that has failed. True if it
   * has signed us in.
   */
  async begin(hasFailed: boolean): Promise<boolean> {
    const note = this.#note();
    // Until it is known who comes back, it is who left: so that what they leave goes if it is somebody else.
    this.#user = note?.pending ? (note.before ?? null) : userOf(note);
    if (!note?.pending) return false;
    if (hasFailed) {
      this.#become(note.before ?? null);
      return false;
    }
    try {
      this.#become(await withRetry(() => request<User>("GET", "/api/me"), { maxAttempts: 3 }));
    } catch (error) {
      if (!isRequestError(error)) throw error;
      this.#become(null);
    }
    return this.#user !== null;
  }

  /** Another tab may have signed in or out. */
  reread(): void {
    const note = this.#note();
    if (!note?.pending) this.#take(userOf(note));
  }

  #note(): Note | null {
    const found = this.#kept.read(NOTE);
    return isNote(found) ? found : null;
  }

  expect(): void {
    this.#kept.write(NOTE, { pending: true, before: this.#user });
  }

  #become(user: User | null): void {
    this.#kept.set(NOTE, user && JSON.stringify({ id: user.id, name: user.name, email: user.email }));
    this.#take(user);
  }

  #take(user: User | null): void {
    const before = this.#user;
    this.#user = user;
    if (before?.id !== user?.id || before?.name !== user?.name) this.#page.turned(before);
  }

  /** The server has told that nobody is signed in. */
  lose(): void {
    this.#become(null);
  }

  async ways(): Promise<Ways> {
    const { registration, oidc } = await withRetry(() => request<Told>("GET", "/api/auth"), { maxAttempts: 3 });
    return { registration, ...(oidc && { oidc }) };
  }

  /** Sign in ("login") or make an account ("register"), and take the browser's anonymous chats along, the open one first. */
  signIn(way: "login" | "register", fields: { email: string; password: string; name?: string }): Promise<void> {
    return this.#page.as(async () => {
      const openId = this.#page.openId();
      const mine = this.#keyring.anonymous().sort((one, other) => Number(other.id === openId) - Number(one.id === openId));
      const first = mine.slice(0, MOST_CLAIMS);
      const { claimed, ...user } = await request<SignedIn>("POST", `/api/auth/${way}`, { body: { ...fields, claim: first.map(keyed) } });
      this.#settle(first, claimed);
      this.#become(user);
      await this.#claim(mine.slice(MOST_CLAIMS));
    });
  }

  claimAll(): Promise<void> {
    return this.claim(this.#keyring.anonymous());
  }

  /** Make these anonymous chats the account's; the browser needs no key to them then. */
  async claim(mine: Anonymous[]): Promise<void> {
    if (mine.length === 0) return;
    await this.#page.as(async () => {
      try {
        await this.#claim(mine);
      } finally {
        this.#page.claimed();
      }
    });
  }

  async #claim(mine: Anonymous[]): Promise<void> {
    for (let at = 0; at < mine.length; at += MOST_CLAIMS) {
      const batch = mine.slice(at, at + MOST_CLAIMS);
      const body = { items: batch.map(keyed) };
      const { items } = await withRetry(() => request<{ items: Claimed[] }>("POST", "/api/claims", { body }), { maxAttempts: 5 });
      this.#settle(batch, items);
    }
  }

  /** What could not be claimed stays where it was, except for what is no more. */
  #settle(mine: Anonymous[], claimed: readonly Claimed[]): void {
    const ours = mine.filter(({ id }) => claimed.some(({ threadId, code }) => threadId === id && code === undefined));
    const lost = mine.filter(({ id }) => claimed.some(({ threadId, code }) => threadId === id && code === "thread_not_found"));
    for (const { id } of [...ours, ...lost]) this.#keyring.drop(id);
    void this.#giveTitles(ours.filter(({ title, named }) => title !== null && !named));
  }

  /** The page named them by itself; from now on the list names them, in every browser. */
  async #giveTitles(mine: Anonymous[]): Promise<void> {
    for (const { id, title } of mine) if (title !== null) await nameOnce(id, title);
  }

  async rename(name: string): Promise<void> {
    this.#become(await request<User>("PATCH", "/api/me", { body: { name: name.trim() || null } }));
  }

  async refresh(): Promise<void> {
    this.#become(await request<User>("GET", "/api/me"));
  }

  /** End the session; the browser goes to the OpenID Provider's own end of it, where there is one. */
  async signOut(): Promise<void> {
    const elsewhere = await this.#page.as(async () => {
      const { endSessionUrl } = await withRetry(() => request<SignedOut>("POST", "/api/auth/logout"), { maxAttempts: 3 });
      this.#become(null);
      this.#page.leaves();
      return endSessionUrl;
    });
    if (elsewhere) location.assign(elsewhere);
  }

  remove(password?: string): Promise<void> {
    return this.#page.as(async () => {
      await request<null>("DELETE", "/api/me", { body: password ? { password } : {} });
      this.#become(null);
      this.#page.leaves();
    });
  }
}

/** Give a thread its title, which is no great loss if it fails. */
export async function nameOnce(id: string, title: string): Promise<void> {
  try {
    await withRetry(() => request("PATCH", `/api/threads/${id}`, { body: { title } }), { maxAttempts: 3 });
  } catch (error) {
    if (!isRequestError(error)) throw error;
  }
}

function keyed({ id, key }: Anonymous): KeyedThread {
  return { threadId: id, anonKey: key };
}

function isNote(found: unknown): found is Note {
  return typeof found === "object" && found !== null && (!("id" in found) || typeof found.id === "string");
}

/** The note has only what the page shows; the rest is asked for where it is needed. */
function userOf(note: Note | null): User | null {
  if (!note?.id) return null;
  const { id, name, email } = note;
  return { id, ...(name && { name }), ...(email && { email }), password: true, identities: [], createdAt: "" };
}
