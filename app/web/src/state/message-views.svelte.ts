// Messages as components see them. Each block is reactive by itself, so that a change redraws only what shows that block.

import { answerStatus, textOf } from "@khala/client";
import type { BlobRef, Block, BlockPatch, Finish, MessagePatch, MessageState, OutboxEntry, OutboxState, RunFailure, Step } from "@khala/client";
import { isPermanent, messageForCode } from "./error-messages.ts";
import type { BlockView, MessageView, MessageDisplayStatus, MessageError } from "./page-model.ts";

/** A message without its content. It changes rarely. */
export type MessageHead = Omit<MessageState, "content">;

/** What a message needs of its thread. */
export interface MessageContext {
  /** Whether the connection has been lost for so long that answers count as interrupted. */
  readonly isInterrupted: boolean;
  /** Whether this answer without content waits for another one to end. */
  isQueued(id: string): boolean;
  versionsOf(id: string): readonly string[];
  authorOf(head: MessageHead): string | null;
}

class BlockBox implements BlockView {
  readonly key: string;
  block: Block;

  constructor(key: string, block: Block) {
    this.key = key;
    this.block = $state.raw(block);
  }
}

const NONE: readonly string[] = [];
const NO_START_TIMES: Readonly<Record<string, number>> = {};

/** A message that the server has stored. */
export class StoredMessage implements MessageView {
  readonly id: string;
  readonly #context: MessageContext;
  #head: MessageHead;
  #blocks: readonly BlockBox[] = $state.raw([]);

  constructor(head: MessageHead, around: MessageContext) {
    this.id = head.id;
    this.#head = $state.raw(head);
    this.#context = around;
  }

  /** Apply a patch. A block of another kind in the same place is a new block with a new key. */
  applyPatch(patch: MessagePatch): void {
    this.#head = patch.head;
    const blocks = this.#blocks.slice(0, patch.length);
    let isNew = blocks.length !== this.#blocks.length;
    for (const change of patch.blocks) {
      const box = blocks[change.at];
      const block = applyBlockPatch(box?.block, change);
      if (box && isSameKind(box.block, block)) box.block = block;
      else blocks[change.at] = new BlockBox(keyOf(change.at, block), block);
      isNew ||= blocks[change.at] !== box;
    }
    if (isNew) this.#blocks = blocks;
  }

  get head(): MessageHead {
    return this.#head;
  }

  get blocks(): readonly BlockView[] {
    return this.#blocks;
  }

  get displayStatus(): MessageDisplayStatus {
    if (this.#head.role === "user") return "sent";
    const stands = answerStatus(this.#head);
    if (stands !== "writing") return stands;
    if (this.#context.isInterrupted) return "interrupted";
    return this.#blocks.length === 0 && this.#context.isQueued(this.id) ? "queued" : "writing";
  }

  get error(): MessageError | null {
    const failure: RunFailure | undefined = this.#head.failure;
    if (!failure) return null;
    const { code, cause, message: reason, retryAfter } = failure;
    return { code, reason, ...(cause !== undefined && { cause }), ...(retryAfter !== undefined && { retryAt: Date.parse(this.#head.updatedAt) + 1000 * retryAfter }) };
  }

  get finish(): Finish | null {
    return this.#head.finish ?? null;
  }

  get step(): Step | null {
    return this.#head.currentStep ?? null;
  }

  get memoryCount(): number {
    return this.#head.memories ?? this.#head.finish?.memories ?? 0;
  }

  get toolStartedAt(): Readonly<Record<string, number>> {
    return this.#head.toolStartedAt ?? NO_START_TIMES;
  }

  get versions(): readonly string[] {
    return this.#context.versionsOf(this.id);
  }

  get author(): string | null {
    return this.#context.authorOf(this.#head);
  }

  get text(): string {
    return textOf({ content: this.#blocks.map(({ block }) => block) });
  }

  get files(): readonly BlobRef[] {
    return this.#blocks.flatMap(({ block }) => (block.type === "file" ? [block.blob] : []));
  }
}

/** A message that is being sent. It is created anew when its state changes, which is rare. */
export class OutgoingMessage implements MessageView {
  readonly id: string;
  readonly head: MessageHead;
  readonly blocks: readonly BlockView[];
  readonly displayStatus: MessageDisplayStatus;
  readonly error: MessageError | null;
  readonly attempt: number;
  readonly text: string;
  readonly files: readonly BlobRef[];
  readonly finish = null;
  readonly step = null;
  readonly memoryCount = 0;
  readonly toolStartedAt = NO_START_TIMES;
  readonly versions = NONE;
  readonly author = null;

  constructor({ id, threadId, text, attachments, parentId, state }: OutboxEntry, isOnline: boolean) {
    const time = creationTimeOf(id);
    const blocks: Block[] = [{ type: "text", text }, ...attachments.map((blob): Block => ({ type: "file", blob }))];
    this.id = id;
    this.head = { id, threadId, ...(parentId && { parentId }), role: "user", status: "final", seq: 0, createdAt: time, updatedAt: time };
    this.blocks = blocks.map((block, at) => ({ key: keyOf(at, block), block }));
    this.displayStatus = state.phase === "queued" && isOnline ? "sending" : state.phase;
    this.error = state.phase === "failed" ? errorOf(state) : null;
    this.attempt = state.phase === "sending" ? state.attempt : 1;
    this.text = text;
    this.files = attachments;
  }
}

/** The error of a failed send. */
function errorOf({ code, message, errors, retryAt }: Extract<OutboxState, { phase: "failed" }>): MessageError {
  return { reason: messageForCode(code, message, errors), ...(retryAt !== null && { retryAt }), ...(isPermanent(code) && { final: true }) };
}

/** The creation time in a UUID of version 7. */
function creationTimeOf(id: string): string {
  const time = Number.parseInt(id.replaceAll("-", "").slice(0, 12), 16);
  return new Date(Number.isFinite(time) ? time : 0).toISOString();
}

function applyBlockPatch(before: Block | undefined, change: BlockPatch): Block {
  if ("block" in change) return change.block;
  if (before?.type !== "text") throw new Error("Text was to be appended to what is no text.");
  return { ...before, text: before.text + change.append };
}

function isSameKind(before: Block, after: Block): boolean {
  return before.type === after.type && (before.type !== "tool" || after.type !== "tool" || before.toolCallId === after.toolCallId);
}

function keyOf(at: number, block: Block): string {
  return block.type === "tool" ? `${at} ${block.toolCallId}` : `${at} ${block.type}`;
}
