// One thread: its state as it changes, and the commands for it.

import type { Api } from "./api.ts";
import type { BlobRef, Message, OlderMessages, Run, RunOptions, SendResult, Snapshot, Thread, ThreadChanges } from "./frames.ts";
import { checkedId, newId } from "./ids.ts";
import { valuesOf } from "./observable.ts";
import type { Observable, StopListening } from "./observable.ts";
import type { Outbox, OutboxEntry } from "./outbox.ts";
import type { RealtimeOptions } from "./realtime-client.ts";
import { upload } from "./requests.ts";
import { RunClient, SubscriptionRefusedError } from "./run-client.ts";
import type { MessageState, ThreadState } from "./state.ts";
import { ThreadFeed } from "./thread-feed.ts";
import type { PresenceView, ThreadView } from "./thread-view.ts";

const OLDER_MESSAGES = 50;

export interface SendOptions {
  /** The idempotency key of the message. By default a new id. */
  messageId?: string;
  /** The message that the new one follows, null for none. By default the newest of the active branch. */
  parentId?: string | null;
  /** Uploads of this thread that belong to no message yet, at most 10. See `upload`. */
  attachments?: readonly BlobRef[];
  /** Model, agent, budget, tools and so on. */
  options?: RunOptions;
  signal?: AbortSignal;
}

export interface FileOptions {
  /** By default the name of a `File`. */
  name?: string;
  signal?: AbortSignal;
  /** Called with the share of the file that is sent, from 0 to 1. Only in browsers. */
  onProgress?: (share: number) => void;
}

/** What a thread needs of its client. */
export interface ThreadDependencies {
  readonly outbox: Outbox;
  readonly queued: Observable<readonly OutboxEntry[]>;
  readonly realtime: RealtimeOptions;
}

/**
 * A thread of the server. It connects when somebody observes it, by `subscribe`, `follow` or a run's `text` and `result`, and
 * stays up to date over lost connections and restarts of the server. Requests fail with `ApiError` or `NetworkError`; those
 * that may be repeated are, with exponential backoff.
 */
export class ThreadClient implements Observable<ThreadView> {
  readonly id: string;
  /** The view before anything was received: that of `initial`. A server renders it, and so does a page that hydrates. */
  readonly initialView: ThreadView;
  /** The people who are present; followed while it has listeners. */
  readonly presence: Observable<PresenceView>;
  readonly #api: Api;
  readonly #dependencies: ThreadDependencies;
  readonly #feed: ThreadFeed;

  /** Use `khala.thread(id)` or `khala.threads.create()`. */
  constructor(api: Api, id: string, dependencies: ThreadDependencies, initial?: ThreadState) {
    this.id = checkedId(id);
    this.#api = api;
    this.#dependencies = dependencies;
    const onState = (state: ThreadState): void => dependencies.outbox.removeDelivered(id, state);
    this.#feed = new ThreadFeed(api, id, { ...dependencies.realtime, queued: dependencies.queued, onState, ...(initial && { initial }) });
    this.initialView = this.#feed.initialView;
    this.presence = this.#feed.presence;
  }

  /** The view as it is known now. The same object until something changes. */
  get(): ThreadView {
    return this.#feed.view.get();
  }

  /** Calls `listener` after each change of the view, and follows the thread until the returned function is called. */
  subscribe(listener: () => void): StopListening {
    return this.#feed.view.subscribe(listener);
  }

  /**
   * The views of the thread, from the current one on. A slow reader skips views. Throws `SubscriptionRefusedError` when the
   * server refuses or ends the subscription. Ends when `signal` is aborted, or the client is closed.
   */
  async *follow({ signal }: { signal?: AbortSignal } = {}): AsyncGenerator<ThreadView, void> {
    for await (const view of valuesOf(this.#feed.view, signal)) {
      if (view.status === "refused" && view.error) throw new SubscriptionRefusedError(view.error.code, view.error.message);
      if (view.status === "idle") return; // closed
      yield view;
    }
  }

  /**
   * Send a message, and return the run that answers it. The request is repeated under the same `messageId`, so the message is
   * stored once. `ApiError` `run_active` if an answer is being written and `options.ifBusy` is not set.
   */
  async send(text: string, { messageId = newId(), parentId, attachments = [], options = {}, signal }: SendOptions = {}): Promise<RunClient> {
    const body = { messageId, text, attachments: attachments.map(({ blobId }) => blobId), options, ...(parentId !== undefined && { parentId }) };
    return this.#runFrom(await this.#api.send<SendResult>("POST", this.#path("/send"), { body, signal, isIdempotent: true }));
  }

  /**
   * Queue a message in the outbox, and return its id. It is among `messages` of the view at once, with its `delivery`. It is sent
   * when the network is there, after those before it, also after a reload where the outbox is persistent. If an answer is being
   * written then, its own waits its turn, unless `options.ifBusy` says otherwise. Throws `OutboxFullError`.
   */
  queue(text: string, { messageId, parentId, attachments = [], options = {} }: Omit<SendOptions, "signal"> = {}): string {
    const entry = { threadId: this.id, keys: {}, text, attachments, options: { ifBusy: "queue" as const, ...options }, ...(parentId !== undefined && { parentId }) };
    return this.#dependencies.outbox.add({ ...entry, ...(messageId !== undefined && { id: messageId }) });
  }

  /** Send a queued message again that was refused, under the same id. */
  resend(messageId: string): void {
    this.#dependencies.outbox.resend(messageId);
  }

  /** Remove a queued message. One that is being sent may arrive all the same. */
  withdraw(messageId: string): void {
    this.#dependencies.outbox.withdraw(messageId);
  }

  /** Ask for another answer to a user's message. Repeated under the same `answerId`. Errors as those of `send`. */
  async regenerate(messageId: string, { answerId = newId(), options = {} }: { answerId?: string; options?: RunOptions } = {}): Promise<RunClient> {
    const body = { messageId, answerId, options };
    return this.#runFrom(await this.#api.send<SendResult>("POST", this.#path("/regenerate"), { body, isIdempotent: true }));
  }

  /** A run of this thread. */
  async run(runId: string): Promise<RunClient> {
    const { messageId } = await this.#api.send<Run>("GET", `/api/runs/${checkedId(runId)}`);
    return new RunClient(this.#api, this.#feed, { runId, threadId: this.id, messageId, revision: 0 });
  }

  /** The run that wrote or writes this answer of the thread; null if the message is no answer. */
  runOf(message: MessageState): RunClient | null {
    const { runId, id: messageId } = message;
    return runId === undefined || message.role !== "assistant" ? null : new RunClient(this.#api, this.#feed, { runId, threadId: this.id, messageId, revision: 0 });
  }

  /** Cancel the answer that is being written, if the thread is followed and there is one. */
  async cancel(): Promise<void> {
    const { activeAnswer } = this.get();
    await (activeAnswer && this.runOf(activeAnswer)?.cancel());
  }

  /** Load a page of messages before the oldest one. Returns whether there are more. */
  async loadOlder(): Promise<boolean> {
    const { state } = this.get();
    const oldest = state.messages[0];
    if (!state.hasMore || oldest === undefined) return false;
    const page = await this.#api.send<OlderMessages<Message>>("GET", this.#path("/messages"), { query: { before: oldest.id, limit: OLDER_MESSAGES } });
    this.#feed.addOlderMessages(page);
    return page.hasMore;
  }

  /** The newest messages, without following the thread. `fromSnapshot` makes an `initial` state of it. */
  read({ limit = 100 }: { limit?: number } = {}): Promise<Snapshot> {
    return this.#api.send("GET", this.#path(""), { query: { limit } });
  }

  /** Change title, visibility or active branch. */
  update(changes: ThreadChanges): Promise<Thread> {
    return this.#api.send("PATCH", this.#path(""), { body: changes, isIdempotent: true });
  }

  /** Delete the thread with everything in it. */
  async delete(): Promise<void> {
    await this.#api.send("DELETE", this.#path(""));
  }

  /** Upload a file, to be sent with a message within a day. It is not repeated. */
  upload(file: Blob, { name = (file as { name?: string }).name, signal, onProgress }: FileOptions = {}): Promise<BlobRef> {
    const url = this.#api.url(this.#path("/blobs"), { name });
    return this.#api.auth.send((keys) => upload(url, file, { keys, ...(signal && { signal }), ...(onProgress && { onProgress }) }));
  }

  /** The content of a file or a large output of this thread. */
  download({ blobId }: Pick<BlobRef, "blobId">, { signal }: { signal?: AbortSignal } = {}): Promise<Blob> {
    return this.#api.download(`/api/blobs/${checkedId(blobId)}`, signal);
  }

  /** Give an anonymous thread to the account of these credentials. The key opens nothing afterwards. */
  claim(anonKey: string): Promise<Thread> {
    return this.#api.send("POST", this.#path("/claim"), { body: { anonKey }, isIdempotent: true });
  }

  /** Mark the thread as read up to what is known now, for an account. */
  async markRead(): Promise<void> {
    const { revision } = this.get().state;
    if (revision !== null) await this.#api.send("PUT", this.#path("/read"), { body: { revision } });
  }

  /** The presence state that others see while this client follows the thread, at most 1 KiB as JSON; null leaves. */
  setPresence(state: Record<string, unknown> | null): void {
    this.#feed.setPresence(state);
  }

  /** Connect at once, or check that the connection works. Browsers do this by themselves when the network or the tab comes back. */
  checkConnection(): void {
    this.#feed.checkConnection();
  }

  /** Subscribe again after a refusal. */
  retry(): void {
    this.#feed.retry();
  }

  /** Disconnect at once, whoever observes the thread. */
  close(): void {
    this.#feed.view.stop();
  }

  #path(rest: string): string {
    return `/api/threads/${this.id}${rest}`;
  }

  #runFrom({ runId, threadId, assistantMessageId, revision }: SendResult): RunClient {
    return new RunClient(this.#api, this.#feed, { runId, threadId, messageId: assistantMessageId, revision });
  }
}
