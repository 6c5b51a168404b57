// The account that is signed in. The session cookie is not readable by scripts, so a note in the browser's storage says who it is.

import { isRequestError, request, withRetry } from "@khala/client";
import type { ClaimResult, SignedInUser, SignedOut, SignInMethods, ThreadClaim, User } from "@khala/client";
import { ACCOUNT_STORAGE_KEY, readNote, writeNote } from "../browser/account-note.ts";
import type { AccountNote } from "../browser/account-note.ts";
import { claimPush, expectConfirmation, hidePushDetails } from "../browser/push-account.ts";
import type { Keyring, KnownChat } from "./keyring.ts";
import type { BrowserStorage } from "../browser/browser-storage.ts";
import type { Account, SignInOptions } from "./page-model.ts";
import { m } from "../i18n/messages.ts";

const MAX_CLAIMS_PER_REQUEST = 100;

type AnonymousChat = KnownChat & { key: string };

/** What signing in and out needs of the page. */
export interface AccountContext {
  /** Run a change of the identity, as `RealtimeClient.changeIdentity`. */
  changeIdentity<Result>(change: () => Promise<Result>): Promise<Result>;
  /** The account has changed; `before` is the previous one. */
  onUserChanged(before: User | null): void;
  /** The person has signed out or deleted the account: close what only the account could open. */
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

  /** The display name: the name, or the local part of the email address. */
  get name(): string {
    return this.#user ? (this.#user.name ?? this.#user.email?.split("@")[0] ?? m.you_2()) : "";
  }

  /**
   * Read the note. If an external sign-in is pending, or the address says that one `hasEnded`, and it has not failed, ask the
   * server for the account. Returns whether that sign-in succeeded.
   */
  async restore(hasFailed: boolean, hasEnded = false): Promise<boolean> {
    const note = readNote(this.#storage);
    const before = note?.pending ? (note.before ?? null) : userOf(note);
    // Until the new account is known it is the previous one, so that its data is removed if another account signs in.
    this.#user = before;
    if (!note?.pending && !hasEnded) return false;
    expectConfirmation(this.#storage); // the same account may have another session
    if (hasFailed) {
      this.#setUser(before);
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

  /** Read the note again, which another tab may have changed. */
  reload(): void {
    const note = readNote(this.#storage);
    if (!note?.pending) this.#updateUser(userOf(note));
  }

  expectSignIn(): void {
    this.#storage.write(ACCOUNT_STORAGE_KEY, { pending: true, before: this.#user });
  }

  #setUser(user: User | null): void {
    writeNote(this.#storage, user);
    this.#updateUser(user);
  }

  #updateUser(user: User | null): void {
    const before = this.#user;
    this.#user = user;
    if (before?.id !== user?.id) expectConfirmation(this.#storage);
    if (before && before.id !== user?.id) hidePushDetails(this.#storage);
    if (before?.id !== user?.id || before?.name !== user?.name) this.#context.onUserChanged(before);
  }

  /** The server reports that no account is signed in. */
  handleSignedOut(): void {
    this.#setUser(null);
  }

  async signInMethods(): Promise<SignInOptions> {
    const { registration, oidc } = await withRetry(() => request<SignInMethods>("GET", "/api/auth"), { maxAttempts: 3 });
    return { registration, ...(oidc && { oidc }) };
  }

  /** Sign in ("login") or create an account ("register"), and claim the browser's anonymous chats, the open one first. */
  signIn(way: "login" | "register", fields: { email: string; password: string; name?: string }): Promise<void> {
    return this.#context.changeIdentity(async () => {
      const openId = this.#context.openThreadId();
      const mine = this.#keyring.claimable().sort((one, other) => Number(other.id === openId) - Number(one.id === openId));
      const first = mine.slice(0, MAX_CLAIMS_PER_REQUEST);
      const { claimed, ...user } = await request<SignedInUser>("POST", `/api/auth/${way}`, { body: { ...fields, claim: first.map(toKeyedThread) } });
      this.#dropClaimed(user.id, first, claimed);
      this.#setUser(user);
      await this.#claim(mine.slice(MAX_CLAIMS_PER_REQUEST));
    });
  }

  claimAll(): Promise<void> {
    return this.claim(this.#keyring.claimable());
  }

  /** Claim these anonymous chats for the account. Their keys are removed from the browser. */
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
      const { items } = await withRetry(() => request<{ items: ClaimResult[] }>("POST", "/api/claims", { body }), { maxAttempts: 5 });
      this.#dropClaimed(this.#user?.id ?? null, batch, items);
    }
  }

  /** Remove the keys of claimed and of deleted chats. Chats that could not be claimed keep their keys. */
  #dropClaimed(accountId: string | null, mine: AnonymousChat[], claimed: readonly ClaimResult[]): void {
    const ours = mine.filter(({ id }) => claimed.some(({ threadId, code }) => threadId === id && code === undefined));
    const lost = mine.filter(({ id }) => claimed.some(({ threadId, code }) => threadId === id && code === "thread_not_found"));
    if (accountId !== null) claimPush(this.#storage, ours.map(({ key }) => key), accountId);
    for (const { id } of [...ours, ...lost]) this.#keyring.removeKeys(id);
    void this.#saveTitles(ours.filter(({ title, named }) => title !== null && !named).reverse());
  }

  /** Save the titles that the page had derived itself, so that the list shows them in every browser, those used last at the end. */
  async #saveTitles(mine: AnonymousChat[]): Promise<void> {
    for (const { id, title } of mine) if (title !== null) await saveTitle(id, title);
  }

  async rename(name: string): Promise<void> {
    this.#setUser(await request<User>("PATCH", "/api/me", { body: { name: name.trim() || null } }));
  }

  async refresh(): Promise<void> {
    this.#setUser(await request<User>("GET", "/api/me"));
  }

  /** End the session. Goes on to the OpenID Provider's logout page if there is one. */
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

/** Save a thread's title; errors of the request are ignored. */
export async function saveTitle(id: string, title: string): Promise<void> {
  try {
    await withRetry(() => request("PATCH", `/api/threads/${id}`, { body: { title } }), { maxAttempts: 3 });
  } catch (error) {
    if (!isRequestError(error)) throw error;
  }
}

function toKeyedThread({ id, key }: AnonymousChat): ThreadClaim {
  return { threadId: id, anonKey: key };
}

/** The account as far as the note has it. Other fields are requested where they are needed. */
function userOf(note: AccountNote | null): User | null {
  if (!note?.id) return null;
  const { id, name, email } = note;
  return { id, ...(name && { name }), ...(email && { email }), password: true, identities: [], createdAt: "" };
}
