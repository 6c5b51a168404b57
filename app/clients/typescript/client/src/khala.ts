// The entry point of the client: one server, one caller.

import { addressOf, Api } from "./api.ts";
import type { ApiOptions } from "./api.ts";
import { Authenticator } from "./credentials.ts";
import type { Credentials } from "./credentials.ts";
import type { Agent, Items, Models, Page, Run, SearchHit, SendResult, Snapshot } from "./frames.ts";
import { checkedId } from "./ids.ts";
import { LiveValue } from "./observable.ts";
import type { Observable } from "./observable.ts";
import type { OutboxEntry } from "./outbox.ts";
import { Outbox, sendBody } from "./outbox.ts";
import { MemoriesClient, PlansClient } from "./plans-client.ts";
import type { RealtimeOptions } from "./realtime-client.ts";
import { retryNow } from "./requests.ts";
import type { RunClient } from "./run-client.ts";
import { fromSnapshot } from "./state.ts";
import type { ThreadState } from "./state.ts";
import type { Store } from "./stores.ts";
import { defaultStore } from "./stores.ts";
import { ThreadClient } from "./thread-client.ts";
import { ThreadsClient } from "./threads-client.ts";

/** The number of threads from which on those that nobody observes are forgotten. */
const MAX_OPEN_THREADS = 100;

/** What a page has, a worker has in part, and Node has not. */
const page = globalThis as Partial<EventTarget> & { readonly document?: EventTarget };

export interface KhalaOptions extends RealtimeOptions {
  /** The address of the server, such as `https://khala.example.com`. In a browser, by default that of the page. */
  server?: string | URL;
  credentials?: Credentials;
  /**
   * Identifies the person, for example your id of them. Queued messages are stored for this person, and no other person of the
   * same browser sends them. Without it they are stored for an `anonKey`, and otherwise last as long as the page.
   */
  user?: string;
  /** Where queued messages are stored. By default IndexedDB if it exists and the person is known, else memory. */
  storage?: Store<OutboxEntry>;
  /** Called when that storage fails. Messages are sent all the same, but do not survive the page. */
  onStorageError?: (error: unknown) => void;
}

export interface ThreadOptions {
  /** Credentials for this thread, such as a share key or a token for this thread alone. By default those of the client. */
  credentials?: Credentials;
  /** What is known of the thread: a stored state, or a snapshot that a server has read. The client continues from there. */
  initial?: ThreadState | Snapshot;
}

export interface SearchOptions {
  threadId?: string;
  kind?: "message" | "file" | "memory";
  /** Whether to search by meaning as well. By default true; by words alone an answer takes less time. */
  byMeaning?: boolean;
  cursor?: string;
  limit?: number;
  signal?: AbortSignal;
}

/**
 * A client of one Khala server for one caller. It works in browsers, workers and Node, and opens no connection until something
 * is observed or sent. Call `close()` when the caller changes, for example when they sign out.
 */
export class Khala {
  readonly threads: ThreadsClient;
  readonly plans: PlansClient;
  readonly memories: MemoriesClient;
  /** All queued messages, in the order in which they were added. */
  readonly queued: Observable<readonly OutboxEntry[]>;
  readonly #api: Api;
  readonly #outbox: Outbox;
  readonly #realtime: RealtimeOptions;
  readonly #open = new Map<string, ThreadClient>();
  readonly #apis = new Map<string, Api>();
  readonly #wake: () => void;

  constructor({ server, credentials = {}, user, storage, onStorageError, ...realtime }: KhalaOptions = {}) {
    this.#api = new Api(addressOf(server), new Authenticator(credentials));
    this.#realtime = realtime;
    const queued = new LiveValue<readonly OutboxEntry[]>([], () => undefined, () => undefined, 0); // prettier-ignore
    this.queued = queued;
    const store = this.#ownMessagesOnly(storage ?? defaultStore(`khala-outbox ${this.#api.server}`, user ?? credentials.anonKey));
    this.#outbox = new Outbox({ store, onChange: (entries) => queued.set(entries), send: (entry) => this.#send(entry), ...(onStorageError && { onStorageError }) });
    this.threads = new ThreadsClient(this.#api, realtime, (id, auth) => this.#thread(id, auth));
    this.plans = new PlansClient(this.#api);
    this.memories = new MemoriesClient(this.#api);
    this.#wake = () => this.#checkConnections();
    page.addEventListener?.("online", this.#wake);
    page.document?.addEventListener("visibilitychange", this.#wake);
    void this.#outbox.restore();
  }

  /** The address of the server, without a slash at its end. */
  get server(): string {
    return this.#api.server;
  }

  /**
   * A thread by its id; nothing is sent until it is used. Throws `TypeError` if the id is no UUID. The same id gives the same client, so `options` count the first time,
   * until it is closed.
   */
  thread(id: string, { credentials, initial }: ThreadOptions = {}): ThreadClient {
    return this.#thread(id, credentials && new Authenticator(credentials), initial && toState(initial));
  }

  /** A run by its id. Errors as those of `request`. */
  async run(id: string): Promise<RunClient> {
    const { threadId } = await this.#api.send<Run>("GET", `/api/runs/${checkedId(id)}`);
    return this.#thread(threadId).run(id);
  }

  /** Find messages, files and memories that the caller may read. */
  search(q: string, { byMeaning = true, signal, ...query }: SearchOptions = {}): Promise<Page<SearchHit>> {
    return this.#api.send("GET", "/api/search", { query: { q, ...query, meaning: byMeaning ? 1 : 0 }, signal });
  }

  /** The models that a request may name. */
  models(): Promise<Models> {
    return this.#api.send("GET", "/api/models");
  }

  /** The agents that the caller has, by name. */
  async agents(): Promise<Agent[]> {
    return (await this.#api.send<Items<Agent>>("GET", "/api/agents")).items;
  }

  /** Send any request of the REST API, such as `khala.request("GET", "/api/me")`. Errors as those of `request`. */
  request<T>(method: string, path: string, options: ApiOptions = {}): Promise<T> {
    return this.#api.send<T>(method, path, options);
  }

  /** Disconnect everything. Messages that wait to be sent stay stored; those that are being sent may arrive. */
  close(): void {
    page.removeEventListener?.("online", this.#wake);
    page.document?.removeEventListener("visibilitychange", this.#wake);
    this.threads.close();
    for (const thread of this.#open.values()) thread.close();
    this.#open.clear();
    this.#outbox.stop();
  }

  #thread(id: string, auth?: Authenticator, initial?: ThreadState): ThreadClient {
    const known = this.#open.get(id);
    if (known) return known;
    const api = auth ? this.#api.as(auth) : this.#api;
    if (auth) this.#apis.set(id, api);
    const thread = new ThreadClient(api, id, { outbox: this.#outbox, queued: this.queued, realtime: this.#realtime }, initial);
    this.#forgetIdle();
    this.#open.set(id, thread);
    return thread;
  }

  /** Forget the threads that nobody observes, the oldest first, when there are many. Their clients still work. */
  #forgetIdle(): void {
    const waiting = new Set(this.queued.get().map(({ threadId }) => threadId));
    for (const [id, thread] of this.#open) {
      if (this.#open.size < MAX_OPEN_THREADS) return;
      if (thread.get().status !== "idle" || waiting.has(id)) continue;
      this.#open.delete(id);
      this.#apis.delete(id);
    }
  }

  #send(entry: OutboxEntry): Promise<SendResult> {
    const api = this.#apis.get(entry.threadId) ?? this.#api;
    return api.send("POST", `/api/threads/${entry.threadId}/send`, { body: sendBody(entry) });
  }

  /** A thread with credentials of its own can't be sent to after a reload, so its messages are not stored. */
  #ownMessagesOnly(store: Store<OutboxEntry>): Store<OutboxEntry> {
    const put = (entry: OutboxEntry): Promise<void> => (this.#apis.has(entry.threadId) ? Promise.resolve() : store.put(entry));
    return { all: () => store.all(), get: (id) => store.get(id), remove: (id) => store.remove(id), put };
  }

  #checkConnections(): void {
    retryNow();
    this.threads.checkConnection();
    for (const thread of this.#open.values()) thread.checkConnection();
  }
}

function toState(given: ThreadState | Snapshot): ThreadState {
  // A state without plans is a snapshot as well.
  const isState = given.plans?.some((plan) => "entry" in plan);
  return isState ? (given as ThreadState) : fromSnapshot(given as Snapshot);
}
