// Patches between two states of a thread, small enough to be posted from a worker with every token.

import type { Block, Thread } from "./frames.ts";
import { applyPlanPatches, diffPlans } from "./plans.ts";
import type { PlanPatch } from "./plans.ts";
import type { MessageState, ThreadState } from "./state.ts";
import { EMPTY_THREAD } from "./state.ts";

/** A new block at index `at`, or text to append to the text block there. */
export type BlockPatch = { readonly at: number; readonly append: string } | { readonly at: number; readonly block: Block };

/** A new or changed message. Its content has `length` blocks, of which `blocks` differ. */
export interface MessagePatch {
  readonly id: string;
  readonly head: Omit<MessageState, "content">;
  readonly length: number;
  readonly blocks: readonly BlockPatch[];
}

/** The changes from one state to another. A `whole` patch replaces any state before it. */
export interface ThreadPatch {
  readonly threadId: string | null;
  readonly whole: boolean;
  readonly revision: number | null;
  readonly thread: Thread | null;
  readonly hasMore: boolean;
  /** The ids of all messages in order, present only if the order changed. */
  readonly order?: readonly string[];
  readonly messages: readonly MessagePatch[];
  /** All plans in order, present only if one has changed. */
  readonly plans?: readonly PlanPatch[];
}

/** The patch that turns `before` into `after`. It is whole if `before` is null or of another thread. */
export function diffThread(before: ThreadState | null, after: ThreadState): ThreadPatch {
  const isWhole = before?.thread?.id !== after.thread?.id || before === null;
  const old = isWhole ? [] : before.messages;
  const held = new Map(old.map((message) => [message.id, message]));
  const plans = diffPlans(isWhole ? [] : before.plans, after.plans);
  const isInOrder = old.length === after.messages.length && old.every((message, at) => message.id === after.messages[at]?.id);
  return {
    threadId: after.thread?.id ?? null,
    whole: isWhole,
    revision: after.revision,
    thread: after.thread,
    hasMore: after.hasMore,
    ...(!isInOrder && { order: after.messages.map((message) => message.id) }),
    messages: after.messages.flatMap((message) => diffMessage(held.get(message.id), message) ?? []),
    ...(plans !== null && { plans }),
  };
}

/** The state after a patch. Unchanged messages and blocks stay the same objects. Throws if the patch was made for another state. */
export function applyPatch(before: ThreadState, patch: ThreadPatch): ThreadState {
  const { messages: old, plans } = patch.whole ? EMPTY_THREAD : before;
  const patches = new Map(patch.messages.map((messagePatch) => [messagePatch.id, messagePatch]));
  const held = patch.order && new Map(old.map((message) => [message.id, message]));
  const { revision, thread, hasMore } = patch;
  const messages = patch.order
    ? patch.order.map((id) => applyMessagePatch(id, held?.get(id), patches.get(id)))
    : old.map((message) => applyMessagePatch(message.id, message, patches.get(message.id)));
  return { revision, thread, messages, hasMore, plans: patch.plans ? applyPlanPatches(plans, patch.plans) : plans };
}

function diffMessage(before: MessageState | undefined, after: MessageState): MessagePatch | null {
  if (before === after) return null;
  const { content, ...head } = after;
  const old = before?.content ?? [];
  const blocks = content.flatMap((block, at) => diffBlock(old[at], block, at) ?? []);
  if (before && blocks.length === 0 && content.length === old.length && isEqual({ ...before, content: null }, { ...head, content: null })) return null;
  return { id: after.id, head, length: content.length, blocks };
}

function diffBlock(before: Block | undefined, after: Block, at: number): BlockPatch | null {
  if (before === after) return null;
  if (before?.type === "text" && after.type === "text" && after.text.length > before.text.length && after.text.startsWith(before.text))
    return { at, append: after.text.slice(before.text.length) };
  return isEqual(before, after) ? null : { at, block: after };
}

function applyMessagePatch(id: string, before: MessageState | undefined, patch: MessagePatch | undefined): MessageState {
  if (patch === undefined) return before ?? mismatch(id);
  const content = before?.content.slice(0, patch.length) ?? [];
  for (const change of patch.blocks) content[change.at] = "block" in change ? change.block : appendText(id, content[change.at], change.append);
  if (content.length !== patch.length) return mismatch(id);
  return { ...patch.head, content };
}

function appendText(id: string, block: Block | undefined, text: string): Block {
  return block?.type === "text" ? { ...block, text: block.text + text } : mismatch(id);
}

function mismatch(id: string): never {
  throw new Error(`This patch was made for another state: message ${id} differs.`);
}

/** Whether two JSON values are equal. Identical objects are not compared field by field. */
function isEqual(one: unknown, other: unknown): boolean {
  if (one === other) return true;
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return false;
  if (Array.isArray(one) !== Array.isArray(other)) return false;
  const [keys, others] = [Object.keys(one), Object.keys(other)];
  return keys.length === others.length && keys.every((key) => key in other && isEqual(Reflect.get(one, key), Reflect.get(other, key)));
}
