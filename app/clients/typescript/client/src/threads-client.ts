// The threads of a caller: created, listed, and followed as a list.

import type { Api } from "./api.ts";
import { Authenticator } from "./credentials.ts";
import type { CreatedThread, Invitation, NewThread, Page, Role, Thread, ThreadListEntry } from "./frames.ts";
import { newId } from "./ids.ts";
import { LiveValue } from "./observable.ts";
import type { Observable, StopListening } from "./observable.ts";
import type { RealtimeOptions } from "./realtime-client.ts";
import { RealtimeClient } from "./realtime-client.ts";
import { webSocketClass } from "./reconnecting-socket.ts";
import type { AccessKeys } from "./requests.ts";
import { backoffMs, isTransient } from "./requests.ts";
import type { ThreadListState } from "./state.ts";
import type { ThreadClient } from "./thread-client.ts";
import { LINGER_MS } from "./thread-feed.ts";
import type { SubscriptionError, SubscriptionStatus } from "./thread-view.ts";

/** An entry of the thread list. For a caller without an account, only `thread` is known. */
export interface ThreadListItem {
  readonly thread: Thread;
  readonly role?: Role;
  readonly unread?: boolean;
  readonly running?: boolean;
  readonly needsApproval?: boolean;
}

/** The thread list at one moment: the threads that changed last come first. Immutable. */
export interface ThreadListView {
  readonly status: SubscriptionStatus;
  readonly error: SubscriptionError | null;
  readonly items: readonly ThreadListItem[];
  readonly hasMore: boolean;
  readonly invitations: readonly Invitation[];
}

const EMPTY_LIST: ThreadListView = Object.freeze({ status: "idle", error: null, items: [], hasMore: false, invitations: [] });

/**
 * The threads of the caller. The list is live for an account. For a guest with an anonymous key it is read once when it is
 * followed, and changes by `create` and `refresh`.
 */
export class ThreadsClient implements Observable<ThreadListView> {
  readonly #api: Api;
  readonly #realtime: RealtimeOptions;
  readonly #open: (id: string, auth?: Authenticator) => ThreadClient;
  readonly #view: LiveValue<ThreadListView>;
  #client: RealtimeClient | null = null;
  #keys: AccessKeys = {};
  #hasRenewed = false;
  #generation = 0;

  /** Use `khala.threads`. */
  constructor(api: Api, realtime: RealtimeOptions, open: (id: string, auth?: Authenticator) => ThreadClient) {
    this.#api = api;
    this.#realtime = realtime;
    this.#open = open;
    this.#view = new LiveValue<ThreadListView>(EMPTY_LIST, () => this.#start(), () => this.#stop(), LINGER_MS); // prettier-ignore
  }

  /**
   * Create a thread. With an account it belongs to the account, otherwise the anonymous key opens it. Without any credentials,
   * the server makes a key for this thread alone: `onKey` gets it, and only this time. A `temporary` thread is on no list, uses and
   * leaves no memories, and is deleted a day after its creation.
   */
  async create({ id = newId(), title, temporary = false, onKey }: Pick<NewThread, "id" | "title" | "temporary"> & { onKey?: (anonKey: string) => void } = {}): Promise<ThreadClient> {
    const { anonKey, token } = this.#api.auth.credentials;
    const body = { id, ...(title !== undefined && { title }), ...(temporary && { temporary }), ...(anonKey !== undefined && token === undefined && { anonKey }) };
    // A key that the server made would be lost with its answer, so such a request is not repeated.
    const created = await this.#api.send<CreatedThread>("POST", "/api/threads", { body, isIdempotent: !this.#api.auth.isEmpty });
    if (created.anonKey !== undefined) onKey?.(created.anonKey);
    if (this.#client === null && !temporary) this.#add(created.thread);
    return this.#open(id, created.anonKey === undefined ? undefined : new Authenticator({ anonKey: created.anonKey }));
  }

  /** A page of the caller's threads, newest first. */
  list(query: { cursor?: string; limit?: number } = {}): Promise<Page<Thread>> {
    return this.#api.send("GET", "/api/threads", { query });
  }

  /** The list as it is known now. The same object until something changes. */
  get(): ThreadListView {
    return this.#view.get();
  }

  /** Calls `listener` after each change, and follows the list until the returned function is called. */
  subscribe(listener: () => void): StopListening {
    return this.#view.subscribe(listener);
  }

  /** Read the list again, for a guest. The list of an account is always up to date. */
  async refresh(): Promise<void> {
    if (this.#client === null) await this.#read(this.#generation);
  }

  /** Connect at once, or check that the connection works. */
  checkConnection(): void {
    this.#client?.checkConnection();
  }

  /** Disconnect at once. */
  close(): void {
    this.#view.stop();
  }

  #start(): void {
    const generation = ++this.#generation;
    const { anonKey, token } = this.#api.auth.credentials;
    const isGuest = anonKey !== undefined && token === undefined;
    if (!isGuest) webSocketClass(this.#realtime);
    this.#change({ status: "connecting", error: null });
    void (isGuest ? this.#readWithRetry(generation) : this.#connect(generation));
  }

  async #connect(generation: number): Promise<void> {
    const keys = await this.#api.auth.keys().catch((error: unknown) => this.#fail(error));
    if (!keys || generation !== this.#generation) return;
    this.#keys = keys;
    this.#hasRenewed = false;
    const client = new RealtimeClient(
      this.#api.socketUrl,
      {
        onThread: () => undefined,
        onThreadList: (list) => this.#accept(list),
        onConnection: ({ phase }) => {
          if (phase !== "live" && this.#view.get().status === "live") this.#change({ status: "reconnecting" });
          else if (phase === "live" && this.#view.get().status === "reconnecting") this.#change({ status: "live" });
        },
        onSignedOut: () => void this.#renewOrRefuse(client),
      },
      this.#realtime,
    );
    this.#client = client;
    if (keys.token !== undefined) client.authenticate(keys.token);
    client.watchThreads(true);
  }

  #stop(): void {
    this.#generation++;
    this.#client?.close();
    this.#client = null;
    this.#change({ status: "idle" });
  }

  async #renewOrRefuse(client: RealtimeClient): Promise<void> {
    const generation = this.#generation;
    const newer = this.#hasRenewed ? null : await this.#api.auth.refresh(this.#keys).catch(() => null);
    this.#hasRenewed = true;
    if (generation !== this.#generation) return;
    if (newer?.token === undefined) return this.#change({ status: "refused", error: { code: "unauthorized", message: "No account is signed in." } });
    this.#keys = newer;
    client.authenticate(newer.token);
    client.watchThreads(true);
  }

  #accept({ entries, hasMore, invitations }: ThreadListState): void {
    this.#hasRenewed = false;
    const items: ThreadListEntry[] = [...entries.values()].sort((one, other) => (one.changedAt < other.changedAt ? 1 : -1));
    this.#change({ status: "live", error: null, items, hasMore, invitations });
  }

  async #readWithRetry(generation: number): Promise<void> {
    for (let attempt = 0; generation === this.#generation; attempt++) {
      try {
        return await this.#read(generation);
      } catch (error) {
        if (!isTransient(error)) return this.#fail(error);
        await new Promise<void>((resolve) => setTimeout(resolve, backoffMs(attempt, Math.random())));
      }
    }
  }

  async #read(generation: number): Promise<void> {
    const { items, nextCursor } = await this.list({ limit: 100 });
    if (generation === this.#generation) this.#change({ status: "live", error: null, items: items.map((thread) => ({ thread })), hasMore: nextCursor !== undefined });
  }

  #add(thread: Thread): void {
    const others = this.#view.get().items.filter((item) => item.thread.id !== thread.id);
    this.#change({ items: [{ thread }, ...others] });
  }

  #fail(error: unknown): void {
    const { code = "unauthorized", message } = error as { code?: string; message: string };
    this.#change({ status: "refused", error: { code, message } });
  }

  #change(changes: Partial<ThreadListView>): void {
    this.#view.set({ ...this.#view.get(), ...changes });
  }
}
