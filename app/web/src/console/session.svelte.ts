// Who uses the console: nobody yet, an account that is no administrator, or an administrator.

import { ApiError, isRequestError, request, withRetry } from "@khala/client";
import type { SignedOut, SignInMethods, User } from "@khala/client";
import { readNote, writeNote } from "../browser/account-note.ts";
import { BrowserStorage } from "../browser/browser-storage.ts";
import { expectConfirmation, hidePushDetails } from "../browser/push-account.ts";
import { errorSentence } from "./error-sentences.ts";

type SessionState = "unknown" | "signed-out" | "refused" | "admin" | "failed";

const storage = new BrowserStorage(() => localStorage);

class Session {
  state: SessionState = $state("unknown");
  user: User | null = $state.raw(null);
  methods: SignInMethods | null = $state.raw(null);
  /** Why the account could not be read, as a sentence. */
  error = $state("");

  /** Read the account of the session cookie. */
  async check(): Promise<void> {
    try {
      this.user = await withRetry(() => request<User>("GET", "/api/me"), { maxAttempts: 3 });
      this.state = this.user.admin ? "admin" : "refused";
      this.#noteAccount();
    } catch (error) {
      if (!isRequestError(error)) throw error;
      await this.#onFailure(error);
    }
  }

  async #onFailure(error: unknown): Promise<void> {
    this.user = null;
    if (!(error instanceof ApiError && error.status === 401)) {
      [this.state, this.error] = ["failed", errorSentence(error)];
      return;
    }
    this.#noteAccount();
    this.methods ??= await request<SignInMethods>("GET", "/api/auth").catch(() => null); // the form for passwords is shown anyway
    this.state = "signed-out";
  }

  /** The chat page follows the account of the session: in other tabs at once, else at its next visit. */
  #noteAccount(): void {
    const note = readNote(storage);
    if (note?.id === this.user?.id || (this.user === null && note?.pending)) return;
    writeNote(storage, this.user);
    expectConfirmation(storage);
    if (note?.id !== undefined) hidePushDetails(storage);
  }

  /** Sign in with a password. Throws as `request` does. */
  async signIn(email: string, password: string): Promise<void> {
    await request("POST", "/api/auth/login", { body: { email, password } });
    await this.check();
  }

  /** End the session, and go on to the OpenID Provider's logout page if there is one. Throws as `request` does. */
  async signOut(): Promise<void> {
    const { endSessionUrl } = await request<SignedOut>("POST", "/api/auth/logout");
    await this.check();
    if (endSessionUrl) location.assign(endSessionUrl);
  }

  /** A request of a view failed: the session may have ended, or the account may be no administrator any more. */
  onError(error: unknown): void {
    if (error instanceof ApiError && (error.status === 401 || error.status === 403)) void this.check();
  }

  /** How the account is shown. */
  get name(): string {
    return this.user?.name ?? this.user?.email ?? "Your account";
  }
}

export const session = new Session();
