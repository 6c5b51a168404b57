// Who is signed in on this browser. The cookie that says so can't be read, so the page keeps a note of its own beside it.

import type { Claimed, KeyedThread, SignedIn, SignedOut, User, Ways as Told } from "../khala/frames.ts";
import { request, withRetry, isRequestError } from "../khala/requests.ts";
import type { Keyring, KnownChat } from "./keyring.ts";
import type { BrowserStorage } from "./browser-storage.ts";
import type { Account, SignInMethods } from "./page-model.ts";

export const ACCOUNT_STORAGE_KEY = "khala.user";
const MAX_CLAIMS_PER_REQUEST = 100;

type AnonymousChat = KnownChat & { key: string };
/** What is noted: an account, or that the browser has left to sign in elsewhere, and who it was before. */
type AccountNote = { id?: string; name?: string; email?: string; pending?: true; before?: User | null };

/** What signing in and out has to reach of the page. */
export interface AccountContext {
  /** Do what changes who we are, as `Feed.as`. */
  changeIdentity<Result>(change: () => Promise<Result>): Promise<Result>;
  /** Somebody else, or nobody, is signed in by now; `before` was. */
  onUserChanged(before: User | null): void;
  /** The account ends here by the person's own wish: nothing that only it could open may stay in sight. */
  onAccountLeft(): void;
  openThreadId(): string | null;
  onClaimed(): void;
}

export class BrowserAccount implements Account {
  readonly #storage: BrowserStorage;
  readonly #keyring: Keyring;
  readonly #context: AccountContext;
  #user: User | null = $state.raw(null);

  constructor(kept: BrowserStorage, keyring: Keyring, page: AccountContext) {
    this.#storage = kept;
    this.#keyring = keyring;
    this.#context = page;
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
  async restore(hasFailed: boolean): Promise<boolean> {
    const note = this.#readNote();
    // Until it is known who comes back, it is who left: so that what they leave goes if it is somebody else.
    this.#user = note?.pending ? (note.before ?? null) : userOf(note);
    if (!note?.pending) return false;
    if (hasFailed) {
      this.#setUser(note.before ?? null);
      return false;
    }
    try {
      this.#setUser(await withRetry(() => request<User>("GET", "/api/me"), { maxAttempts: 3 }));
    } catch (error) {
      if (!isRequestError(error)) throw error;
      this.#setUser(null);
    }
    return this.#user !== null;
  }

  /** Another tab may have signed in or out. */
  reload(): void {
    const note = this.#readNote();
    if (!note?.pending) this.#updateUser(userOf(note));
  }

  #readNote(): AccountNote | null {
    const found = this.#storage.read(ACCOUNT_STORAGE_KEY);
    return isNote(found) ? found : null;
  }

  expectSignIn(): void {
    this.#storage.write(ACCOUNT_STORAGE_KEY, { pending: true, before: this.#user });
  }

  #setUser(user: User | null): void {
    this.#storage.set(ACCOUNT_STORAGE_KEY, user && JSON.stringify({ id: user.id, name: user.name, email: user.email }));
    this.#updateUser(user);
  }

  #updateUser(user: User | null): void {
    const before = this.#user;
    this.#user = user;
    if (before?.id !== user?.id || before?.name !== user?.name) this.#context.onUserChanged(before);
  }

  /** The server has told that nobody is signed in. */
  handleSignedOut(): void {
    this.#setUser(null);
  }

  async signInMethods(): Promise<SignInMethods> {
    const { registration, oidc } = await withRetry(() => request<Told>("GET", "/api/auth"), { maxAttempts: 3 });
    return { registration, ...(oidc && { oidc }) };
  }

  /** Sign in ("login") or make an account ("register"), and take the browser's anonymous chats along, the open one first. */
  signIn(way: "login" | "register", fields: { email: string; password: string; name?: string }): Promise<void> {
    return this.#context.changeIdentity(async () => {
      const openId = this.#context.openThreadId();
      const mine = this.#keyring.claimable().sort((one, other) => Number(other.id === openId) - Number(one.id === openId));
      const first = mine.slice(0, MAX_CLAIMS_PER_REQUEST);
      const { claimed, ...user } = await request<SignedIn>("POST", `/api/auth/${way}`, { body: { ...fields, claim: first.map(toKeyedThread) } });
      this.#dropClaimed(first, claimed);
      this.#setUser(user);
      await this.#claim(mine.slice(MAX_CLAIMS_PER_REQUEST));
    });
  }

  claimAll(): Promise<void> {
    return this.claim(this.#keyring.claimable());
  }

  /** Make these anonymous chats the account's; the browser needs no key to them then. */
  async claim(mine: AnonymousChat[]): Promise<void> {
    if (mine.length === 0) return;
    await this.#context.changeIdentity(async () => {
      try {
        await this.#claim(mine);
      } finally {
        this.#context.onClaimed();
      }
    });
  }

  async #claim(mine: AnonymousChat[]): Promise<void> {
    for (let at = 0; at < mine.length; at += MAX_CLAIMS_PER_REQUEST) {
      const batch = mine.slice(at, at + MAX_CLAIMS_PER_REQUEST);
      const body = { items: batch.map(toKeyedThread) };
      const { items } = await withRetry(() => request<{ items: Claimed[] }>("POST", "/api/claims", { body }), { maxAttempts: 5 });
      this.#dropClaimed(batch, items);
    }
  }

  /** What could not be claimed stays where it was, except for what is no more. */
  #dropClaimed(mine: AnonymousChat[], claimed: readonly Claimed[]): void {
    const ours = mine.filter(({ id }) => claimed.some(({ threadId, code }) => threadId === id && code === undefined));
    const lost = mine.filter(({ id }) => claimed.some(({ threadId, code }) => threadId === id && code === "thread_not_found"));
    for (const { id } of [...ours, ...lost]) this.#keyring.removeKeys(id);
    void this.#saveTitles(ours.filter(({ title, named }) => title !== null && !named));
  }

  /** The page named them by itself; from now on the list names them, in every browser. */
  async #saveTitles(mine: AnonymousChat[]): Promise<void> {
    for (const { id, title } of mine) if (title !== null) await saveTitle(id, title);
  }

  async rename(name: string): Promise<void> {
    this.#setUser(await request<User>("PATCH", "/api/me", { body: { name: name.trim() || null } }));
  }

  async refresh(): Promise<void> {
    this.#setUser(await request<User>("GET", "/api/me"));
  }

  /** End the session; the browser goes to the OpenID Provider's own end of it, where there is one. */
  async signOut(): Promise<void> {
    const elsewhere = await this.#context.changeIdentity(async () => {
      const { endSessionUrl } = await withRetry(() => request<SignedOut>("POST", "/api/auth/logout"), { maxAttempts: 3 });
      this.#setUser(null);
      this.#context.onAccountLeft();
      return endSessionUrl;
    });
    if (elsewhere) location.assign(elsewhere);
  }

  remove(password?: string): Promise<void> {
    return this.#context.changeIdentity(async () => {
      await request<null>("DELETE", "/api/me", { body: password ? { password } : {} });
      this.#setUser(null);
      this.#context.onAccountLeft();
    });
  }
}

/** Give a thread its title, which is no great loss if it fails. */
export async function saveTitle(id: string, title: string): Promise<void> {
  try {
    await withRetry(() => request("PATCH", `/api/threads/${id}`, { body: { title } }), { maxAttempts: 3 });
  } catch (error) {
    if (!isRequestError(error)) throw error;
  }
}

function toKeyedThread({ id, key }: AnonymousChat): KeyedThread {
  return { threadId: id, anonKey: key };
}

function isNote(found: unknown): found is AccountNote {
  return typeof found === "object" && found !== null && (!("id" in found) || typeof found.id === "string");
}

/** The note has only what the page shows; the rest is asked for where it is needed. */
function userOf(note: AccountNote | null): User | null {
  if (!note?.id) return null;
  const { id, name, email } = note;
  return { id, ...(name && { name }), ...(email && { email }), password: true, identities: [], createdAt: "" };
}
