// What changed between two states of a thread, small enough to cross a worker's border with every token.

import type { Block, Thread } from "./frames.ts";
import type { KnownMessage, ThreadState } from "./state.ts";
import { EMPTY } from "./state.ts";

/** A block that took its place at `at`, or text that the text block there has grown by. */
export type BlockPatch = { readonly at: number; readonly append: string } | { readonly at: number; readonly block: Block };

/** A message that changed, or is new: its content has `length` blocks, of which these differ. */
export interface MessagePatch {
  readonly id: string;
  readonly head: Omit<KnownMessage, "content">;
  readonly length: number;
  readonly blocks: readonly BlockPatch[];
}

/** From one state to another; `whole` ones count for themselves, whatever was before. */
export interface ThreadPatch {
  readonly threadId: string | null;
  readonly whole: boolean;
  readonly revision: number | null;
  readonly thread: Thread | null;
  readonly hasMore: boolean;
  /** The ids of all messages in order, where that changed. */
  readonly order?: readonly string[];
  readonly messages: readonly MessagePatch[];
}

/** The patch that makes `after` of `before`; without a `before`, or with one of another thread, a whole one. */
export function diff(before: ThreadState | null, after: ThreadState): ThreadPatch {
  const isWhole = before?.thread?.id !== after.thread?.id || before === null;
  const old = isWhole ? [] : before.messages;
  const held = new Map(old.map((message) => [message.id, message]));
  const isInOrder = old.length === after.messages.length && old.every((message, at) => message.id === after.messages[at]?.id);
  return {
    threadId: after.thread?.id ?? null,
    whole: isWhole,
    revision: after.revision,
    thread: after.thread,
    hasMore: after.hasMore,
    ...(!isInOrder && { order: after.messages.map((message) => message.id) }),
    messages: after.messages.flatMap((message) => messagePatch(held.get(message.id), message) ?? []),
  };
}

/** The state after a patch; messages and blocks that it does not name stay the same objects. Throws if it is of another state. */
export function apply(before: ThreadState, patch: ThreadPatch): ThreadState {
  const { messages: old } = patch.whole ? EMPTY : before;
  const patches = new Map(patch.messages.map((one) => [one.id, one]));
  const held = patch.order && new Map(old.map((message) => [message.id, message]));
  const { revision, thread, hasMore } = patch;
  const messages = patch.order
    ? patch.order.map((id) => patched(id, held?.get(id), patches.get(id)))
    : old.map((message) => patched(message.id, message, patches.get(message.id)));
  return { revision, thread, messages, hasMore };
}

function messagePatch(before: KnownMessage | undefined, after: KnownMessage): MessagePatch | null {
  if (before === after) return null;
  const { content, ...head } = after;
  const old = before?.content ?? [];
  const blocks = content.flatMap((block, at) => blockPatch(old[at], block, at) ?? []);
  if (before && blocks.length === 0 && content.length === old.length && same({ ...before, content: null }, { ...head, content: null })) return null;
  return { id: after.id, head, length: content.length, blocks };
}

function blockPatch(before: Block | undefined, after: Block, at: number): BlockPatch | null {
  if (before === after) return null;
  if (before?.type === "text" && after.type === "text" && after.text.length > before.text.length && after.text.startsWith(before.text))
    return { at, append: after.text.slice(before.text.length) };
  return same(before, after) ? null : { at, block: after };
}

function patched(id: string, before: KnownMessage | undefined, patch: MessagePatch | undefined): KnownMessage {
  if (patch === undefined) return before ?? unfit(id);
  const content = before?.content.slice(0, patch.length) ?? [];
  for (const change of patch.blocks) content[change.at] = "block" in change ? change.block : grown(id, content[change.at], change.append);
  if (content.length !== patch.length) return unfit(id);
  return { ...patch.head, content };
}

function grown(id: string, block: Block | undefined, text: string): Block {
  return block?.type === "text" ? { ...block, text: block.text + text } : unfit(id);
}

function unfit(id: string): never {
  throw new Error(`This patch is of another state: message ${id} is not as it was.`);
}

/** Whether two values of JSON say the same; what is the same object need not be looked into. */
function same(one: unknown, other: unknown): boolean {
  if (one === other) return true;
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return false;
  if (Array.isArray(one) !== Array.isArray(other)) return false;
  const [keys, others] = [Object.keys(one), Object.keys(other)];
  return keys.length === others.length && keys.every((key) => key in other && same(Reflect.get(one, key), Reflect.get(other, key)));
}
