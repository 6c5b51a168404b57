// The questions on their way: sent until the server says yes or no, in the order in which they were asked, also after the
// page was left.

import { Outbox, OutboxFullError, sendMessage } from "../khala/outbox.ts";
import type { NewOutboxEntry, OutboxEntry } from "../khala/outbox.ts";
import type { BlobRef, MadeThread, Sent } from "../khala/frames.ts";
import { ApiError, request } from "../khala/requests.ts";
import { IndexedDbStore, MemoryStore } from "../khala/stores.ts";
import type { Store } from "../khala/stores.ts";
import type { MessageHead } from "./message-views.svelte.ts";
import type { Keyring } from "./keyring.ts";

export class SendQueue {
  readonly #keyring: Keyring;
  readonly #userId: () => string | undefined;
  readonly #outbox: Outbox;
  #entries: readonly OutboxEntry[] = $state.raw([]);

  /** `who()` is the account that is signed in now, whichever tab it was that signed it in. */
  constructor(keyring: Keyring, who: () => string | undefined, store: Store<OutboxEntry> = createStore()) {
    this.#keyring = keyring;
    this.#userId = who;
    this.#outbox = new Outbox({
      store,
      onChange: (entries) => (this.#entries = entries),
      onStorageError: (error) => console.warn("khala", "A message is not kept for the next visit.", error),
      send: (entry) => this.#send(entry),
    });
  }

  /** Take up what was not sent when the page was left. */
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

  /** Send it; false where too many wait already. */
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

  withdraw(id: string): { text: string; files: readonly BlobRef[] } | null {
    const entry = this.#outbox.withdraw(id);
    return entry && { text: entry.text, files: entry.attachments };
  }

  /** Drop what has arrived, by the head that `found(id)` gives, and what was reset away before it was seen. */
  removeDelivered(threadId: string, found: (id: string) => MessageHead | undefined, revision: number | null): void {
    const arrived = this.entriesOf(threadId).flatMap(({ id }) => found(id) ?? []);
    this.#outbox.removeDelivered(threadId, { messages: arrived.map((head) => ({ ...head, content: [] })), revision });
  }

  clear(threadId?: string): void {
    this.#outbox.clear(threadId);
  }

  /** The account is gone: drop what it wrote, also before this visit, and what is for chats that this browser has no key to. */
  removeAccount(account: string): void {
    void this.#outbox.purge(({ who, threadId }) => who === account || !this.#keyring.find(threadId));
  }

  /** What an account wrote is sent as that account's, or not at all. */
  #isOurs({ who }: OutboxEntry): boolean {
    return who === undefined || who === this.#userId();
  }

  /** The run that a question of this chat has begun, which is not seen in the chat yet. */
  startedRunOf(threadId: string): string | null {
    const entry = this.entriesOf(threadId).find(({ state }) => state.phase === "sent");
    return entry?.state.phase === "sent" ? entry.state.sent.runId : null;
  }

  /** What was asked before the server had made the chat waits for that. */
  async #send(entry: OutboxEntry): Promise<Sent> {
    const { threadId } = entry;
    if (!this.#isOurs(entry)) throw new ApiError(401, { code: "unauthorized", detail: "This was written from an account that’s signed out." });
    const chat = this.#keyring.find(threadId);
    if (chat && !chat.created) await request<MadeThread>("POST", "/api/threads", { body: { id: threadId, ...(chat.key && { anonKey: chat.key }) } });
    return sendMessage(entry);
  }
}

function createStore(): Store<OutboxEntry> {
  return "indexedDB" in globalThis ? new IndexedDbStore("khala-outbox") : new MemoryStore();
}
