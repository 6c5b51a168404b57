// Messages as components see them: each part in a box of its own, so that a change touches only who shows that part.

import type { BlobRef, Block, Finish, RunFailure, Step } from "../khala/frames.ts";
import { answerStatus } from "../khala/state.ts";
import type { MessageState } from "../khala/state.ts";
import type { BlockPatch, MessagePatch } from "../khala/patches.ts";
import type { OutboxEntry, OutboxState } from "../khala/outbox.ts";
import { isPermanent, messageForCode } from "./error-messages.ts";
import type { BlockView, MessageView, Standing, Trouble } from "./shape.ts";

/** A message without its content: what changes seldom. */
export type Head = Omit<MessageState, "content">;

/** What a message doesn't know by itself. */
export interface Surroundings {
  /** Whether the connection is lost for so long that nothing more may come. */
  readonly isCut: boolean;
  versionsOf(id: string): readonly string[];
  authorOf(head: Head): string | null;
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
const NO_BEGINNINGS: Readonly<Record<string, number>> = {};

/** A message that the server has. */
export class StoredMessage implements MessageView {
  readonly id: string;
  readonly #around: Surroundings;
  #head: Head;
  #blocks: readonly BlockBox[] = $state.raw([]);

  constructor(head: Head, around: Surroundings) {
    this.id = head.id;
    this.#head = $state.raw(head);
    this.#around = around;
  }

  /** Take what has changed. A part that is of another kind than before is another part, with another key. */
  take(patch: MessagePatch): void {
    this.#head = patch.head;
    const blocks = this.#blocks.slice(0, patch.length);
    let isNew = blocks.length !== this.#blocks.length;
    for (const change of patch.blocks) {
      const box = blocks[change.at];
      const block = changed(box?.block, change);
      if (box && isSameKind(box.block, block)) box.block = block;
      else blocks[change.at] = new BlockBox(keyOf(change.at, block), block);
      isNew ||= blocks[change.at] !== box;
    }
    if (isNew) this.#blocks = blocks;
  }

  get head(): Head {
    return this.#head;
  }

  get blocks(): readonly BlockView[] {
    return this.#blocks;
  }

  get standing(): Standing {
    if (this.#head.role === "user") return "sent";
    const stands = answerStatus(this.#head);
    return stands === "writing" && this.#around.isCut ? "interrupted" : stands;
  }

  get trouble(): Trouble | null {
    const failure: RunFailure | undefined = this.#head.failure;
    return failure ? { reason: failure.message } : null;
  }

  get finish(): Finish | null {
    return this.#head.finish ?? null;
  }

  get round(): Step | null {
    return this.#head.step ?? null;
  }

  get began(): Readonly<Record<string, number>> {
    return this.#head.toolStartedAt ?? NO_BEGINNINGS;
  }

  get versions(): readonly string[] {
    return this.#around.versionsOf(this.id);
  }

  get author(): string | null {
    return this.#around.authorOf(this.#head);
  }

  get text(): string {
    return this.#blocks.map(({ block }) => (block.type === "text" ? block.text : "")).join("");
  }

  get files(): readonly BlobRef[] {
    return this.#blocks.flatMap(({ block }) => (block.type === "file" ? [block.blob] : []));
  }
}

/** A question on its way; it is made anew when how it stands changes, which is seldom. */
export class OutgoingMessage implements MessageView {
  readonly id: string;
  readonly head: Head;
  readonly blocks: readonly BlockView[];
  readonly standing: Standing;
  readonly trouble: Trouble | null;
  readonly attempt: number;
  readonly text: string;
  readonly files: readonly BlobRef[];
  readonly finish = null;
  readonly round = null;
  readonly began = NO_BEGINNINGS;
  readonly versions = NONE;
  readonly author = null;

  constructor({ id, threadId, text, attachments, parentId, state }: OutboxEntry, isOnline: boolean) {
    const time = timeOf(id);
    const blocks: Block[] = [{ type: "text", text }, ...attachments.map((blob): Block => ({ type: "file", blob }))];
    this.id = id;
    this.head = { id, threadId, ...(parentId && { parentId }), role: "user", status: "final", seq: 0, createdAt: time, updatedAt: time };
    this.blocks = blocks.map((block, at) => ({ key: keyOf(at, block), block }));
    this.standing = state.phase === "queued" && isOnline ? "sending" : state.phase;
    this.trouble = state.phase === "failed" ? troubleOf(state) : null;
    this.attempt = state.phase === "sending" ? state.attempt : 1;
    this.text = text;
    this.files = attachments;
  }
}

/** What the error of a send says to the person. */
function troubleOf({ code, message, errors, retryAt }: Extract<OutboxState, { phase: "failed" }>): Trouble {
  return { reason: messageForCode(code, message, errors), ...(retryAt !== null && { retryAt }), ...(isPermanent(code) && { final: true }) };
}

/** When an id of version 7 was made. */
function timeOf(id: string): string {
  const time = Number.parseInt(id.replaceAll("-", "").slice(0, 12), 16);
  return new Date(Number.isFinite(time) ? time : 0).toISOString();
}

function changed(before: Block | undefined, change: BlockPatch): Block {
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
