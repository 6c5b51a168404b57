// What a client knows of a thread, as pure functions: no socket, no clock, no DOM. States are values: nothing in them is
// ever changed in place, and what did not change stays the same object.

import { fold } from "./fold.ts";
import type { AccountDelta, AccountFrame, Block, DeltaFrame, Failure, Finish, Invitation, Listed, Message, Older, Part, SnapshotFrame, Step, Thread } from "./frames.ts";

/** A message as far as it is known: with its content, and what its parts have told besides. */
export interface KnownMessage extends Omit<Message, "content"> {
  readonly content: readonly Block[];
  /** Why its run failed. */
  readonly failure?: Failure;
  /** Which round of tools it is at. */
  readonly round?: Step;
  /** When tool calls began to run, in milliseconds of the server's clock, by their ids. */
  readonly began?: Readonly<Record<string, number>>;
  /** How many parts its newest head spoke of. */
  readonly told?: number;
}

/** A thread at one revision; before anything was heard, `revision` is null. */
export interface ThreadState {
  readonly revision: number | null;
  readonly thread: Thread | null;
  readonly messages: readonly KnownMessage[];
  readonly hasMore: boolean;
}

/** An account's list of threads at one revision of its own. */
export interface ListState {
  readonly revision: number | null;
  readonly entries: ReadonlyMap<string, Listed>;
  readonly hasMore: boolean;
  /** The invitations that are open, newest first. */
  readonly invitations: readonly Invitation[];
}

/**
 * What became of a frame: "applied"; "stale", it was known already; "gap", something before it is missing, so ask again
 * with `after`; "broken", parts of a message are missing, so only a snapshot will do.
 */
export type Outcome = "applied" | "stale" | "gap" | "broken";

/** How an answer stands: a finish outranks the row's status. */
export type MessageStanding = "writing" | "done" | "stopped" | "failed";

/** A thread of which nothing was heard yet. */
export const EMPTY: ThreadState = Object.freeze({ revision: null, thread: null, messages: [], hasMore: false });

/** An account's list of which nothing was heard yet. */
export const UNLISTED: ListState = Object.freeze({ revision: null, entries: new Map<string, Listed>(), hasMore: false, invitations: [] });

const ENDED: readonly string[] = ["final", "error", "canceled"];

/** The state that a snapshot says; whatever was known before is forgotten. */
export function fromSnapshot(frame: Pick<SnapshotFrame, "revision" | "thread" | "messages" | "hasMore">): ThreadState {
  return { revision: frame.revision, thread: frame.thread, messages: frame.messages.map(known), hasMore: frame.hasMore };
}

/** The state after a delta, and what became of it; unless it was applied, the state is the one before. */
export function applyDelta(state: ThreadState, frame: DeltaFrame): { state: ThreadState; outcome: Outcome } {
  if (state.revision === null || state.thread === null) return { state, outcome: "gap" };
  if (frame.revision <= state.revision) return { state, outcome: "stale" };
  if (frame.from !== state.revision) return { state, outcome: "gap" };
  const heads = withHeads(state, frame.messages);
  const messages = withParts(heads, frame.parts, state.hasMore);
  if (messages === null || messages.some(lacksParts)) return { state, outcome: "broken" };
  const thread = frame.thread ?? { ...state.thread, revision: frame.revision };
  return { state: { ...state, revision: frame.revision, thread, messages }, outcome: "applied" };
}

/** The state with a page of older messages before those it has. */
export function withEarlier(state: ThreadState, page: Older<Message>): ThreadState {
  const held = new Set(state.messages.map((message) => message.id));
  const older = page.items.filter((message) => !held.has(message.id));
  return { ...state, messages: [...older.map(known), ...state.messages], hasMore: page.hasMore };
}

/** The state with what a snapshot doesn't say of the answer `messageId`: which round it is at, and since when tools run. */
export function withProgress(state: ThreadState, messageId: string, parts: readonly Part[]): ThreadState {
  const heard = newest(parts, "step");
  const messages = state.messages.map((message) => {
    if (message.id !== messageId) return message;
    const round = message.round ?? heard;
    return { ...message, ...(round && { round }), began: { ...beginnings(parts), ...message.began } };
  });
  return { ...state, messages };
}

/** The account's list after a frame, and what became of it. */
export function applyAccount(list: ListState, frame: AccountFrame | AccountDelta): { list: ListState; outcome: Outcome } {
  const told = frame.threads.map((entry): [string, Listed] => [entry.thread.id, entry]);
  const invitations = frame.invitations ?? ("whole" in frame ? [] : list.invitations);
  if ("whole" in frame) return { list: { revision: frame.revision, entries: new Map(told), hasMore: frame.hasMore, invitations }, outcome: "applied" };
  if (list.revision === null || frame.from > list.revision) return { list, outcome: "gap" };
  if (frame.revision <= list.revision) return { list, outcome: "stale" };
  if (frame.from !== list.revision) return { list, outcome: "gap" };
  const entries = new Map([...list.entries, ...told]);
  for (const id of frame.removed) entries.delete(id);
  return { list: { ...list, revision: frame.revision, entries, invitations }, outcome: "applied" };
}

/** How a message stands. */
export function standing(message: { status: Message["status"]; finish?: Finish }): MessageStanding {
  if (message.finish) return message.finish.reason === "canceled" ? "stopped" : message.finish.reason === "error" ? "failed" : "done";
  if (message.status === "draft" || message.status === "streaming") return "writing";
  return message.status === "canceled" ? "stopped" : message.status === "error" ? "failed" : "done";
}

/** The answer that is being written, if there is one; the newest, if there are several. */
export function activeAnswer(state: ThreadState): KnownMessage | null {
  return state.messages.findLast((message) => message.role === "assistant" && standing(message) === "writing") ?? null;
}

function known(message: Message): KnownMessage {
  return { ...message, content: message.content ?? [] };
}

function withHeads(state: ThreadState, heads: readonly Message[]): KnownMessage[] {
  const messages = [...state.messages];
  const added: KnownMessage[] = [];
  for (const head of heads) {
    const index = messages.findIndex((message) => message.id === head.id);
    const own = messages[index];
    if (own) messages[index] = merged(own, head);
    else if (!isOlderThan(head, state)) added.push(merged({ ...head, content: [], seq: 0 }, head));
  }
  // A delta has them in the order in which they changed last.
  return [...messages, ...added.sort((one, other) => Date.parse(one.createdAt) - Date.parse(other.createdAt))];
}

/** A head tells of status and finish; content and seq stay ours, for they are what we have folded ourselves. */
function merged(own: KnownMessage, head: Message): KnownMessage {
  const { content, seq } = head.content && head.seq >= own.seq ? { content: head.content, seq: head.seq } : own;
  const finish = head.finish ?? own.finish;
  return { ...own, ...head, content, seq, told: head.seq, ...(finish && { finish }) };
}

/** Whether a message that we don't hold lies before the page that we do hold. */
function isOlderThan(head: Message, state: ThreadState): boolean {
  const oldest = state.messages[0];
  return state.hasMore && oldest !== undefined && Date.parse(head.createdAt) < Date.parse(oldest.createdAt);
}

function withParts(messages: KnownMessage[], parts: readonly Part[], hasMore: boolean): KnownMessage[] | null {
  const byMessage = new Map<string, Part[]>();
  for (const part of parts) {
    const own = byMessage.get(part.messageId);
    if (own) own.push(part);
    else byMessage.set(part.messageId, [part]);
  }
  const result = [...messages];
  for (const [id, own] of byMessage) {
    const index = result.findIndex((message) => message.id === id);
    const before = result[index];
    if (before === undefined && !hasMore) return null;
    if (before === undefined) continue; // of a message further up than we have loaded
    const after = withOwnParts(before, own);
    if (after === null) return null;
    result[index] = after;
  }
  return result;
}

function withOwnParts(message: KnownMessage, parts: readonly Part[]): KnownMessage | null {
  const fresh: Part[] = [];
  for (const part of parts.toSorted((one, other) => one.seq - other.seq)) {
    const next = message.seq + fresh.length;
    if (part.seq > next) return null;
    if (part.seq === next) fresh.push(part);
  }
  if (fresh.length === 0) return message;
  const finish = newest(fresh, "finish");
  const failure = newest(fresh, "error");
  const round = newest(fresh, "step");
  const began = beginnings(fresh);
  return {
    ...message,
    seq: message.seq + fresh.length,
    content: fold(message.content, fresh),
    ...(finish && { finish }),
    ...(failure && { failure }),
    ...(round && { round }),
    ...(Object.keys(began).length > 0 && { began: { ...message.began, ...began } }),
  };
}

type DataOf = { [One in Part as One["kind"]]: One["data"] };

function newest<Kind extends keyof DataOf>(parts: readonly Part[], kind: Kind): DataOf[Kind] | undefined {
  return parts.findLast((part) => part.kind === kind)?.data as DataOf[Kind] | undefined;
}

/** When tool calls began to run, in milliseconds of the server's clock, by their ids. */
function beginnings(parts: readonly Part[]): Record<string, number> {
  const running = parts.flatMap((part): [string, number][] =>
    part.kind === "tool-status" && part.data.state === "running" ? [[part.data.toolCallId, Date.parse(part.createdAt)]] : [],
  );
  return Object.fromEntries(running);
}

/** An answer that has ended, by its head, with more parts than have come. */
function lacksParts({ status, seq, told = 0 }: KnownMessage): boolean {
  return ENDED.includes(status) && seq < told;
}
