// The questions on their way: sent until the server says yes or no, in the order in which they were asked, also after the
// page was left.

import { Outbox, OutboxFull } from "../khala/outbox.ts";
import type { NewEntry, OutboxEntry } from "../khala/outbox.ts";
import type { BlobRef, MadeThread, Sent } from "../khala/frames.ts";
import { call } from "../khala/requests.ts";
import { IndexedStore, MemoryStore } from "../khala/stores.ts";
import type { Store } from "../khala/stores.ts";
import type { Head } from "./views.svelte.ts";
import type { Keyring } from "./keyring.ts";

export class Outgoings {
  readonly #keyring: Keyring;
  readonly #outbox: Outbox;
  #entries: readonly OutboxEntry[] = $state.raw([]);

  constructor(keyring: Keyring, store: Store<OutboxEntry> = someStore()) {
    this.#keyring = keyring;
    this.#outbox = new Outbox({
      store,
      changed: (entries) => (this.#entries = entries),
      unkept: (error) => console.warn("khala", "A message is not kept for the next visit.", error),
      send: (entry) => this.#send(entry),
    });
  }

  /** Take up what was not sent when the page was left. */
  async restore(): Promise<void> {
    try {
      await this.#outbox.restore();
    } catch (error) {
      console.warn("khala", "What was not sent before can't be read.", error);
    }
  }

  of(threadId: string): readonly OutboxEntry[] {
    return this.#entries.filter((entry) => entry.threadId === threadId);
  }

  /** Send it; false where too many wait already. */
  add(entry: NewEntry): boolean {
    try {
      this.#outbox.add(entry);
      return true;
    } catch (error) {
      if (!(error instanceof OutboxFull)) throw error;
      return false;
    }
  }

  resend(id: string): void {
    this.#outbox.resend(id);
  }

  takeBack(id: string): { text: string; files: readonly BlobRef[] } | null {
    const entry = this.#outbox.take(id);
    return entry && { text: entry.text, files: entry.attachments };
  }

  /** Drop what has arrived, by the head that `found(id)` gives, and what was reset away before it was seen. */
  settle(threadId: string, found: (id: string) => Head | undefined, revision: number | null): void {
    const arrived = this.of(threadId).flatMap(({ id }) => found(id) ?? []);
    this.#outbox.settle(threadId, { messages: arrived.map((head) => ({ ...head, content: [] })), revision });
  }

  clear(threadId?: string): void {
    this.#outbox.clear(threadId);
  }

  /** Drop what would be sent as an account's: to chats that this browser has no key to. */
  clearKeyless(): void {
    for (const { threadId } of this.#entries) if (!this.#keyring.find(threadId)) this.#outbox.clear(threadId);
  }

  /** The run that a question of this chat has begun, which is not seen in the chat yet. */
  runOf(threadId: string): string | null {
    const entry = this.of(threadId).find(({ state }) => state.phase === "sent");
    return entry?.state.phase === "sent" ? entry.state.sent.runId : null;
  }

  /** What was asked before the server had made the chat waits for that. */
  async #send({ id, threadId, keys, text, attachments, options, parentId }: OutboxEntry): Promise<Sent> {
    const chat = this.#keyring.find(threadId);
    if (chat && !chat.created) await call<MadeThread>("POST", "/api/threads", { body: { id: threadId, ...(chat.key && { anonKey: chat.key }) } });
    const body = { messageId: id, text, attachments: attachments.map(({ blobId }) => blobId), options, ...(parentId !== undefined && { parentId }) };
    return call<Sent>("POST", `/api/threads/${threadId}/send`, { body, keys });
  }
}

function someStore(): Store<OutboxEntry> {
  return "indexedDB" in globalThis ? new IndexedStore("khala-outbox") : new MemoryStore();
}
