// Requests of a `Khala` client: with its server, its credentials, and retries where a request may be repeated.

import type { Authenticator } from "./credentials.ts";
import type { AccessKeys } from "./requests.ts";
import { downloadBlob, request, withRetry } from "./requests.ts";

/** Values of query parameters. Those that are undefined are left out. */
export type QueryParameters = Readonly<Record<string, string | number | boolean | undefined>>;

export interface ApiOptions {
  body?: unknown;
  query?: QueryParameters;
  signal?: AbortSignal | undefined;
  /** Whether the request may be sent again after a network error or a 5xx. By default a GET, PUT or DELETE may. */
  isIdempotent?: boolean;
}

const IDEMPOTENT: readonly string[] = ["GET", "HEAD", "PUT", "DELETE"];

/** Sends requests to one server. */
export class Api {
  /** The address of the server, without a slash at its end. */
  readonly server: string;
  readonly auth: Authenticator;

  constructor(server: string, auth: Authenticator) {
    this.server = server;
    this.auth = auth;
  }

  /** The address of the socket. */
  get socketUrl(): string {
    return `${this.server.replace(/^http/, "ws")}/api/ws`;
  }

  /** The same server, for another caller. */
  as(auth: Authenticator): Api {
    return new Api(this.server, auth);
  }

  /** The address of a route, such as `/api/threads`. Throws `TypeError` if a segment of the path is `.` or `..`. */
  url(path: string, query: QueryParameters = {}): string {
    if (/(^|[/\\])(\.|%2e){1,2}([/\\?#]|$)/i.test(path)) throw new TypeError(`This path leads elsewhere: ${JSON.stringify(path.slice(0, 100))}`);
    const given = Object.entries(query).flatMap(([name, value]): [string, string][] => (value === undefined ? [] : [[name, String(value)]]));
    return this.server + path + (given.length ? `?${new URLSearchParams(given).toString()}` : "");
  }

  /** Send a request and return its JSON answer, null for 204. Errors as those of `request`. */
  async send<T>(method: string, path: string, { body, query, signal, isIdempotent = IDEMPOTENT.includes(method) }: ApiOptions = {}): Promise<T> {
    const options = { ...(body !== undefined && { body }), ...(signal && { signal }) };
    const once = (): Promise<T> => this.auth.send((keys: AccessKeys) => request<T>(method, this.url(path, query), { ...options, keys }));
    return isIdempotent ? withRetry(once) : once();
  }

  /** Download the content at a path. Errors as those of `request`. */
  download(path: string, signal?: AbortSignal): Promise<Blob> {
    return withRetry(() => this.auth.send((keys) => downloadBlob(this.url(path), { keys, ...(signal && { signal }) })));
  }
}

/** The address of a server without a slash at its end; by default that of the page. Throws `TypeError`. */
export function addressOf(server: string | URL | undefined): string {
  const { origin } = (globalThis as { location?: { origin: string } }).location ?? {};
  const address = server ?? origin;
  if (address === undefined) throw new TypeError("Name the server: new Khala({ server: \"https://…\" })."); // prettier-ignore
  const url = new URL(address, origin);
  if (url.protocol !== "http:" && url.protocol !== "https:") throw new TypeError(`The server's address begins with http: or https:, and not with ${url.protocol}`);
  return (url.origin + url.pathname).replace(/\/+$/, "");
}
