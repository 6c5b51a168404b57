// Credentials: what a client presents to the server, and how it gets a new token when the server refuses the one it has.

import type { AccessKeys } from "./requests.ts";
import { ApiError } from "./requests.ts";

/**
 * Returns a token. It is called before the first request, and again when the server refused the token: then `refused` is
 * that token, and the function should return a newer one.
 */
export type TokenProvider = (refused: string | null) => string | Promise<string>;

/** What a client presents to the server. In a browser the session's cookie is sent to the page's own server as well. */
export interface Credentials {
  /** The secret that opens the threads that it created, without an account. See `newKey`. */
  anonKey?: string;
  /** The secret of a share link. */
  shareKey?: string;
  /** A bearer token, of an account or of one thread; or a function that returns one. */
  token?: string | TokenProvider;
}

/** Resolves credentials to the keys of a request. A function for tokens is called once at a time. */
export class Authenticator {
  readonly credentials: Credentials;
  #token: string | null;
  #pending: Promise<string> | null = null;

  constructor(credentials: Credentials) {
    this.credentials = credentials;
    this.#token = typeof credentials.token === "string" ? credentials.token : null;
  }

  /** Whether there is any credential besides a cookie. */
  get isEmpty(): boolean {
    const { anonKey, shareKey, token } = this.credentials;
    return anonKey === undefined && shareKey === undefined && token === undefined;
  }

  /** The keys to present. Rejects with the error of the function for tokens. */
  async keys(): Promise<AccessKeys> {
    const { anonKey, shareKey, token } = this.credentials;
    const presented = typeof token === "function" ? (this.#token ?? (await this.#call(token, null))) : token;
    return { ...(anonKey !== undefined && { anonKey }), ...(shareKey !== undefined && { shareKey }), ...(presented !== undefined && { token: presented }) };
  }

  /** The keys after the server refused these; null if there is no newer token. */
  async refresh(refused: AccessKeys): Promise<AccessKeys | null> {
    const { token } = this.credentials;
    if (typeof token !== "function" || refused.token === undefined) return null;
    if (this.#token === refused.token) {
      this.#token = null;
      await this.#call(token, refused.token);
    }
    const keys = await this.keys();
    return keys.token === refused.token ? null : keys;
  }

  /** Call `send` with the keys, and once more with newer keys if the server answers 401. */
  async send<T>(send: (keys: AccessKeys) => Promise<T>): Promise<T> {
    const keys = await this.keys();
    try {
      return await send(keys);
    } catch (error) {
      const newer = error instanceof ApiError && error.status === 401 ? await this.refresh(keys) : null;
      if (newer === null) throw error;
      return send(newer);
    }
  }

  #call(token: TokenProvider, refused: string | null): Promise<string> {
    const get = async (): Promise<string> => token(refused);
    this.#pending ??= get()
      .then((got) => (this.#token = got))
      .finally(() => (this.#pending = null));
    return this.#pending;
  }
}
