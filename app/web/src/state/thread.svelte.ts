// The thread of the open chat: its messages, and the branch that is shown.

import { SvelteSet } from "svelte/reactivity";

import { applyPlanPatches, pathTo, versionsOf } from "@khala/client";
import type { MessagePatch, PlanState, Thread, ThreadPatch } from "@khala/client";
import { MessageRegistry } from "./message-registry.ts";
import type { MessageNode } from "./message-registry.ts";
import { leafAfter, parentFor } from "./leaf.ts";
import { StoredMessage } from "./message-views.svelte.ts";
import type { MessageHead, MessageContext } from "./message-views.svelte.ts";

/** What messages need of the page. */
export interface ThreadContext {
  /** Whether answers count as interrupted. */
  isInterrupted(): boolean;
  authorOf(head: MessageHead): string | null;
}

export class ReactiveThread implements MessageContext {
  readonly #context: ThreadContext;
  readonly #registry = new MessageRegistry();
  #nodes: readonly MessageNode[] = $state.raw([]);
  /** The messages of the steps of plans. */
  #stepNodes: readonly MessageNode[] = $state.raw([]);
  #leaf: string | null = $state(null);
  #writingIds: readonly string[] = $state.raw([]);
  /** Answers that this page has canceled while they waited for their turn. */
  readonly #withdrawn = new SvelteSet<string>();
  /** The number of known authors. */
  authorCount = $state(0);
  thread: Thread | null = $state.raw(null);
  revision: number | null = $state(null);
  hasMore = $state(false);
  plans: readonly PlanState[] = $state.raw([]);

  readonly #branch = $derived(pathTo(this.#nodes, this.#leaf));
  /** The shown branch, root to leaf. */
  readonly shown: readonly StoredMessage[] = $derived(this.#withoutWithdrawn(this.#branch.flatMap(({ id }) => this.find(id) ?? [])));

  constructor(readers: ThreadContext) {
    this.#context = readers;
  }

  /** Apply a patch. */
  applyPatch(patch: ThreadPatch): void {
    const { end: leafId } = this;
    for (const change of patch.messages) this.#applyMessagePatch(change);
    this.thread = patch.thread;
    this.revision = patch.revision;
    this.hasMore = patch.hasMore;
    if (patch.order) this.#reorder(patch.order, leafId);
    if (patch.plans) this.plans = applyPlanPatches(patch.whole ? [] : this.plans, patch.plans);
    else if (patch.whole && this.plans.length > 0) this.plans = [];
    const { writingIds: writing } = this.#registry;
    if (writing.join() !== this.#writingIds.join()) this.#writingIds = writing;
    this.authorCount = this.#registry.authorCount;
  }

  #applyMessagePatch(change: MessagePatch): void {
    const message = this.find(change.id) ?? new StoredMessage(change.head, this);
    message.applyPatch(change);
    this.#registry.put(message);
  }

  #reorder(order: readonly string[], shownEnd: string | null): void {
    const nodes = this.#registry.reorder(order);
    this.#nodes = nodes.filter(({ step }) => step === undefined);
    this.#stepNodes = nodes.filter(({ step }) => step !== undefined);
    const before = { leaf: this.#leaf, shownEnd, awaited: this.#registry.awaitedIds };
    this.#leaf = leafAfter(this.#nodes, before, this.thread?.activeLeaf ?? null);
    this.#registry.removeArrived();
  }

  find(id: string): StoredMessage | undefined {
    return this.#registry.find(id);
  }

  /** The id of the last shown message; null if there is none. */
  get end(): string | null {
    return this.#branch.at(-1)?.id ?? null;
  }

  /** All messages of the conversation in order, on all branches. */
  get all(): readonly MessageNode[] {
    return this.#nodes;
  }

  /** The loaded answers of plans' steps, in order. */
  get stepAnswers(): readonly StoredMessage[] {
    return this.#stepNodes.flatMap(({ id, role }) => (role === "assistant" ? (this.find(id) ?? []) : []));
  }

  /** The active answer: the first on the shown branch, which others may wait for, or else another. */
  get activeAnswer(): StoredMessage | null {
    const writing = this.#writingIds;
    const id = this.#branch.find((node) => writing.includes(node.id))?.id ?? writing.at(-1);
    return id === undefined ? null : (this.find(id) ?? null);
  }

  /** Whether this answer, which has no content yet, waits for another one: a chat has one active run at a time. */
  isQueued(id: string): boolean {
    const { activeAnswer } = this;
    return activeAnswer !== null && activeAnswer.id !== id && this.#writingIds.includes(id);
  }

  /** Hide this answer with its question once it is canceled. An answer that had begun by then, or has other versions, stays. */
  withdraw(answerId: string): void {
    this.#withdrawn.add(answerId);
  }

  #withoutWithdrawn(messages: readonly StoredMessage[]): readonly StoredMessage[] {
    if (this.#withdrawn.size === 0) return messages;
    const isHidden = ({ id, displayStatus, blocks, versions }: StoredMessage) => this.#withdrawn.has(id) && displayStatus === "stopped" && blocks.length === 0 && versions.length === 1;
    const hidden = messages.filter(isHidden).flatMap(({ id, head }) => [id, head.parentId ?? id]);
    return messages.filter(({ id }) => !hidden.includes(id));
  }

  get isInterrupted(): boolean {
    return this.#context.isInterrupted();
  }

  authorOf(head: MessageHead): string | null {
    return this.#context.authorOf(head);
  }

  versionsOf(id: string): readonly string[] {
    return versionsOf(this.#nodes, id).map((version) => version.id);
  }

  /** Show the branch through this message. */
  showBranch(id: string): void {
    this.#leaf = id;
  }

  /** Show this message as soon as it arrives, because the person has asked for it. */
  awaitMessage(id: string): void {
    this.#registry.awaitMessage(id);
  }

  /** The parent that the next send must name. */
  get parent(): string | undefined {
    return parentFor(this.#nodes, this.end, this.thread?.activeLeaf ?? null);
  }
}
