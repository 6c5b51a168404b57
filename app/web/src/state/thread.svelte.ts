// The open chat's thread: what the worker told of it, message by message, and which branch of it is shown.

import { pathTo, versionsOf } from "../khala/branches.ts";
import type { BranchNode } from "../khala/branches.ts";
import type { Thread } from "../khala/frames.ts";
import type { MessagePatch, ThreadPatch } from "../khala/patches.ts";
import { Held } from "./held.ts";
import { leafAfter, parentFor } from "./leaf.ts";
import { StoredMessage } from "./views.svelte.ts";
import type { Head, Surroundings } from "./views.svelte.ts";

/** What the whole page knows that messages need. */
export interface Readers {
  /** Whether nothing more may come for now. */
  isCut(): boolean;
  authorOf(head: Head): string | null;
}

export class ThreadView implements Surroundings {
  readonly #readers: Readers;
  readonly #held = new Held();
  #nodes: readonly BranchNode[] = $state.raw([]);
  #leaf: string | null = $state(null);
  #writing: readonly string[] = $state.raw([]);
  /** How many authors there are of what is known. */
  authorCount = $state(0);
  thread: Thread | null = $state.raw(null);
  revision: number | null = $state(null);
  hasMore = $state(false);

  readonly #branch = $derived(pathTo(this.#nodes, this.#leaf));
  /** The branch that is shown, root to leaf. */
  readonly shown: readonly StoredMessage[] = $derived(this.#branch.flatMap(({ id }) => this.find(id) ?? []));

  constructor(readers: Readers) {
    this.#readers = readers;
  }

  /** Take what has changed. */
  take(patch: ThreadPatch): void {
    const { end } = this;
    for (const change of patch.messages) this.#takeMessage(change);
    this.thread = patch.thread;
    this.revision = patch.revision;
    this.hasMore = patch.hasMore;
    if (patch.order) this.#arrange(patch.order, end);
    const { writing } = this.#held;
    if (writing.join() !== this.#writing.join()) this.#writing = writing;
    this.authorCount = this.#held.authorCount;
  }

  #takeMessage(change: MessagePatch): void {
    const message = this.find(change.id) ?? new StoredMessage(change.head, this);
    message.take(change);
    this.#held.put(message);
  }

  #arrange(order: readonly string[], shownEnd: string | null): void {
    this.#nodes = this.#held.arrange(order);
    const before = { leaf: this.#leaf, shownEnd, awaited: this.#held.awaited };
    this.#leaf = leafAfter(this.#nodes, before, this.thread?.activeLeaf ?? null);
    this.#held.settle();
  }

  find(id: string): StoredMessage | undefined {
    return this.#held.find(id);
  }

  /** The id of the last message that is shown; null before there is any. */
  get end(): string | null {
    return this.#branch.at(-1)?.id ?? null;
  }

  /** All messages, in order, whichever branch they are on. */
  get all(): readonly BranchNode[] {
    return this.#nodes;
  }

  /** The answer that is being written: one that is shown, or else another. */
  get active(): StoredMessage | null {
    const writing = this.#writing;
    const id = this.#branch.findLast((node) => writing.includes(node.id))?.id ?? writing.at(-1);
    return id === undefined ? null : (this.find(id) ?? null);
  }

  get isCut(): boolean {
    return this.#readers.isCut();
  }

  authorOf(head: Head): string | null {
    return this.#readers.authorOf(head);
  }

  versionsOf(id: string): readonly string[] {
    return versionsOf(this.#nodes, id).map((version) => version.id);
  }

  /** Show the branch through this message. */
  choose(id: string): void {
    this.#leaf = id;
  }

  /** Show this message as soon as it is there: it is what the person has asked for. */
  await(id: string): void {
    this.#held.await(id);
  }

  /** What the next send has to name as its parent. */
  get parent(): string | undefined {
    return parentFor(this.#nodes, this.end, this.thread?.activeLeaf ?? null);
  }
}
