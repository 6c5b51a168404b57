// The messages that are being sent, in the order in which they were added. They survive a reload of the page.

import { ApiError, IndexedDbStore, MemoryStore, Outbox, OutboxFullError, request, sendMessage } from "@khala/client";
import type { BlobRef, CreatedThread, NewOutboxEntry, OutboxEntry, SendResult, Store } from "@khala/client";
import type { MessageHead } from "./message-views.svelte.ts";
import { errorMessage } from "./error-messages.ts";
import { keysOf } from "./keyring.ts";
import type { Keyring, KnownChat } from "./keyring.ts";
import { newThread } from "./page-requests.ts";
import { m } from "../i18n/messages.ts";

/** What the queue needs of the page. */
export interface SendQueueContext {
  /** The account that is signed in now, in whichever tab it signed in. */
  userId: () => string | undefined;
  /** Show a message to the person. */
  say: (words: string) => void;
}

export class SendQueue {
  readonly #keyring: Keyring;
  readonly #userId: SendQueueContext["userId"];
  readonly #say: SendQueueContext["say"];
  readonly #outbox: Outbox;
  #entries: readonly OutboxEntry[] = $state.raw([]);

  constructor(keyring: Keyring, page: SendQueueContext, store: Store<OutboxEntry> = createStore()) {
    this.#keyring = keyring;
    this.#userId = page.userId;
    this.#say = page.say;
    this.#outbox = new Outbox({
      store,
      onChange: (entries) => (this.#entries = entries),
      onStorageError: (error) => console.warn("khala", "A message is not kept for the next visit.", error),
      send: (entry) => this.#send(entry),
    });
  }

  /** Continue sending the messages of an earlier visit. */
  async restore(): Promise<void> {
    try {
      await this.#outbox.restore((entry) => this.#isOurs(entry));
    } catch (error) {
      console.warn("khala", "What was not sent before can't be read.", error);
    }
  }

  entriesOf(threadId: string): readonly OutboxEntry[] {
    return this.#entries.filter((entry) => entry.threadId === threadId);
  }

  /** Add a message; false if the queue is full. */
  add(entry: NewOutboxEntry): boolean {
    try {
      const who = this.#userId();
      this.#outbox.add({ ...entry, ...(who !== undefined && { who }) });
      return true;
    } catch (error) {
      if (!(error instanceof OutboxFullError)) throw error;
      return false;
    }
  }

  resend(id: string): void {
    this.#outbox.resend(id);
  }

  /** Send the messages again that failed because the server was out of reach. */
  resendUnreached(): void {
    for (const { id, state } of this.#entries) if (state.phase === "failed" && state.passing) this.#outbox.resend(id);
  }

  withdraw(id: string): { text: string; files: readonly BlobRef[] } | null {
    const entry = this.#outbox.withdraw(id);
    return entry && { text: entry.text, files: entry.attachments };
  }

  /** Remove messages that have arrived, by the heads that `found(id)` returns, and those that a reset has removed. */
  removeDelivered(threadId: string, found: (id: string) => MessageHead | undefined, revision: number | null): void {
    const arrived = this.entriesOf(threadId).flatMap(({ id }) => found(id) ?? []);
    this.#outbox.removeDelivered(threadId, { messages: arrived.map((head) => ({ ...head, content: [] })), revision });
  }

  clear(threadId?: string): void {
    this.#outbox.clear(threadId);
  }

  /** Remove what a signed-out account wrote, also in earlier visits, and messages to chats that this browser has no key to. */
  removeAccount(account: string): void {
    void this.#outbox.purge(({ who, threadId }) => who === account || !this.#keyring.find(threadId));
  }

  /** A message of an account is sent under that account only. */
  #isOurs({ who }: OutboxEntry): boolean {
    return who === undefined || who === this.#userId();
  }

  /** The run that a message of this chat has started and that is not in the thread yet. */
  startedRunOf(threadId: string): string | null {
    const entry = this.entriesOf(threadId).find(({ state }) => state.phase === "sent");
    return entry?.state.phase === "sent" ? entry.state.sent.runId : null;
  }

  /** Create the chat on the server first if that has not happened yet. */
  async #send(entry: OutboxEntry): Promise<SendResult> {
    const { threadId } = entry;
    if (!this.#isOurs(entry)) throw new ApiError(401, { code: "unauthorized", detail: "This was written from an account that’s signed out." });
    const chat = this.#keyring.find(threadId);
    if (chat && !chat.created) await this.#create(chat);
    return sendMessage(entry);
  }

  async #create(chat: KnownChat): Promise<void> {
    await request<CreatedThread>("POST", "/api/threads", { body: newThread(chat) });
    if (!chat.folder) return;
    try {
      await request("PATCH", `/api/threads/${chat.id}/listing`, { keys: keysOf(chat), body: { folder: chat.folder } });
    } catch (error) {
      // The message is sent without the folder, which the browser keeps: it is used when the page opens the chat.
      if (!(error instanceof ApiError)) throw error;
      this.#say(`${m.couldnt_change_chat()} ${errorMessage(error)}`);
    }
  }
}

function createStore(): Store<OutboxEntry> {
  return "indexedDB" in globalThis ? new IndexedDbStore("khala-outbox") : new MemoryStore();
}
