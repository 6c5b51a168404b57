// The messages of a thread by id, with lookups by status and author. It is not reactive.

import { answerStatus } from "@khala/client";
import type { BranchNode, StepRef } from "@khala/client";
import type { StoredMessage } from "./message-views.svelte.ts";

/** The place of a message: in the conversation, or in an attempt of a plan's step. */
export interface MessageNode extends BranchNode {
  readonly step?: StepRef;
}

export class MessageRegistry {
  readonly #messages = new Map<string, StoredMessage>();
  readonly #writing = new Set<string>();
  readonly #awaited = new Set<string>();
  #authors = new Set<string>();

  find(id: string): StoredMessage | undefined {
    return this.#messages.get(id);
  }

  /** Add or update a message. */
  put(message: StoredMessage): void {
    const { id, head } = message;
    this.#messages.set(id, message);
    if (head.authorId) this.#authors.add(head.authorId);
    if (head.role === "assistant" && !head.step && answerStatus(head) === "writing") this.#writing.add(id);
    else this.#writing.delete(id);
  }

  /** Keep only these messages, in this order. Returns their branch nodes. */
  reorder(order: readonly string[]): MessageNode[] {
    const stays = new Set(order);
    const gone = [...this.#messages.keys()].filter((id) => !stays.has(id));
    for (const id of gone) {
      this.#messages.delete(id);
      this.#writing.delete(id);
    }
    const heads = [...this.#messages.values()].map(({ head }) => head);
    if (gone.length) this.#authors = new Set(heads.flatMap(({ authorId }) => authorId ?? []));
    return order.flatMap((id) => {
      const head = this.find(id)?.head;
      return head ? [{ id, ...(head.parentId && { parentId: head.parentId }), role: head.role, ...(head.step && { step: head.step }) }] : [];
    });
  }

  /** The ids of active answers in the conversation, in the order in which they started. */
  get writingIds(): readonly string[] {
    return [...this.#writing];
  }

  get authorCount(): number {
    return this.#authors.size;
  }

  /** The ids of messages that the person waits for. */
  get awaitedIds(): ReadonlySet<string> {
    return this.#awaited;
  }

  awaitMessage(id: string): void {
    this.#awaited.add(id);
  }

  /** Stop awaiting messages that have arrived. */
  removeArrived(): void {
    for (const id of this.#awaited) if (this.#messages.has(id)) this.#awaited.delete(id);
  }
}
