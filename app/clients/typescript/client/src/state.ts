// The state of a thread and of an account's thread list, as pure functions without socket, clock or DOM.
//
// States are immutable values. What did not change stays the same object.

import { fold } from "./fold.ts";
import { applyPlanChanges, plansFromSnapshot } from "./plans.ts";
import type { PlanState } from "./plans.ts";
import type { AccountDelta, AccountFrame, Block, DeltaFrame, RunFailure, Finish, Invitation, ThreadListEntry, Message, OlderMessages, Part, SnapshotFrame, Step, Thread } from "./frames.ts";

/** A message with its content, and further facts from its parts. */
export interface MessageState extends Omit<Message, "content"> {
  readonly content: readonly Block[];
  /** The error of its run, if it failed. */
  readonly failure?: RunFailure;
  /** Its newest `step` part. */
  readonly currentStep?: Step;
  /** The number of memories that the model was told. */
  readonly memories?: number;
  /** When tool calls started, by tool call id, in ms since the epoch on the server's clock. */
  readonly toolStartedAt?: Readonly<Record<string, number>>;
  /** The `seq` of its newest head: the number of parts that the server has. */
  readonly headSeq?: number;
}

/** A thread at one revision. `revision` is null before the first frame. */
export interface ThreadState {
  readonly revision: number | null;
  readonly thread: Thread | null;
  readonly messages: readonly MessageState[];
  readonly hasMore: boolean;
  /** Its plans, the newest first. */
  readonly plans: readonly PlanState[];
}

/** An account's thread list at one revision of the list. */
export interface ThreadListState {
  readonly revision: number | null;
  readonly entries: ReadonlyMap<string, ThreadListEntry>;
  readonly hasMore: boolean;
  /** The open invitations, newest first. */
  readonly invitations: readonly Invitation[];
}

/**
 * The outcome of applying a frame:
 * "applied"; "stale", its revision is already known; "gap", an earlier revision is missing, so subscribe again with `after`;
 * "broken", parts of a message are missing, so only a snapshot helps.
 */
export type ApplyOutcome = "applied" | "stale" | "gap" | "broken";

/** The status of an answer. Its `finish` takes precedence over the `status` field of the message. */
export type AnswerStatus = "writing" | "done" | "stopped" | "failed";

/** The state of a thread before the first frame. */
export const EMPTY_THREAD: ThreadState = Object.freeze({ revision: null, thread: null, messages: [], hasMore: false, plans: [] });

/** The state of a thread list before the first frame. */
export const EMPTY_THREAD_LIST: ThreadListState = Object.freeze({ revision: null, entries: new Map<string, ThreadListEntry>(), hasMore: false, invitations: [] });

const ENDED: readonly string[] = ["final", "error", "canceled"];

/** The state of a snapshot. It replaces any earlier state. */
export function fromSnapshot(frame: Pick<SnapshotFrame, "revision" | "thread" | "messages" | "hasMore" | "plans">): ThreadState {
  return { revision: frame.revision, thread: frame.thread, messages: frame.messages.map(toMessageState), hasMore: frame.hasMore, plans: plansFromSnapshot(frame) };
}

/** The state after a delta, and the outcome. The state is unchanged unless the outcome is "applied". */
export function applyDelta(state: ThreadState, frame: DeltaFrame): { state: ThreadState; outcome: ApplyOutcome } {
  if (state.revision === null || state.thread === null) return { state, outcome: "gap" };
  if (frame.revision <= state.revision) return { state, outcome: "stale" };
  if (frame.from !== state.revision) return { state, outcome: "gap" };
  const heads = withHeads(state, frame.messages);
  const messages = withParts(heads, frame.parts, state.hasMore);
  if (messages === null || messages.some(lacksParts)) return { state, outcome: "broken" };
  const thread = frame.thread ?? { ...state.thread, revision: frame.revision };
  return { state: { ...state, revision: frame.revision, thread, messages, plans: applyPlanChanges(state.plans, frame) }, outcome: "applied" };
}

/** The state with a page of older messages in front. */
export function withOlderMessages(state: ThreadState, page: OlderMessages<Message>): ThreadState {
  const held = new Set(state.messages.map((message) => message.id));
  const older = page.items.filter((message) => !held.has(message.id));
  return { ...state, messages: [...older.map(toMessageState), ...state.messages], hasMore: page.hasMore };
}

/** The state with the current step, tool start times and memories of the answer `messageId`, which a snapshot does not contain. */
export function withProgress(state: ThreadState, messageId: string, parts: readonly Part[]): ThreadState {
  const newestStep = newestData(parts, "step");
  const recalled = newestData(parts, "memory")?.memories.length;
  const messages = state.messages.map((message) => {
    if (message.id !== messageId) return message;
    const currentStep = message.currentStep ?? newestStep;
    const memories = message.memories ?? recalled;
    return { ...message, ...(currentStep && { currentStep }), ...(memories !== undefined && { memories }), toolStartedAt: { ...toolStartTimes(parts), ...message.toolStartedAt } };
  });
  return { ...state, messages };
}

/** The account's thread list after a frame, and the outcome. */
export function applyAccountFrame(list: ThreadListState, frame: AccountFrame | AccountDelta): { list: ThreadListState; outcome: ApplyOutcome } {
  const changed = frame.threads.map((entry): [string, ThreadListEntry] => [entry.thread.id, entry]);
  const invitations = frame.invitations ?? ("whole" in frame ? [] : list.invitations);
  if ("whole" in frame) return { list: { revision: frame.revision, entries: new Map(changed), hasMore: frame.hasMore, invitations }, outcome: "applied" };
  if (list.revision === null || frame.from > list.revision) return { list, outcome: "gap" };
  if (frame.revision <= list.revision) return { list, outcome: "stale" };
  if (frame.from !== list.revision) return { list, outcome: "gap" };
  const entries = new Map([...list.entries, ...changed]);
  for (const id of frame.removed) entries.delete(id);
  return { list: { ...list, revision: frame.revision, entries, invitations }, outcome: "applied" };
}

/** The status of an answer. */
export function answerStatus(message: { status: Message["status"]; finish?: Finish }): AnswerStatus {
  if (message.finish) return message.finish.reason === "canceled" ? "stopped" : message.finish.reason === "error" ? "failed" : "done";
  if (message.status === "draft" || message.status === "streaming") return "writing";
  return message.status === "canceled" ? "stopped" : message.status === "error" ? "failed" : "done";
}

/** The answer that is being written, the newest if there are several; null if there is none. */
export function activeAnswer(state: ThreadState): MessageState | null {
  return state.messages.findLast((message) => message.role === "assistant" && answerStatus(message) === "writing") ?? null;
}

function toMessageState(message: Message): MessageState {
  return { ...message, content: message.content ?? [] };
}

function withHeads(state: ThreadState, heads: readonly Message[]): MessageState[] {
  const messages = [...state.messages];
  const added: MessageState[] = [];
  for (const head of heads) {
    const index = messages.findIndex((message) => message.id === head.id);
    const own = messages[index];
    if (own) messages[index] = mergeHead(own, head);
    else if (!isOlderThan(head, state)) added.push(mergeHead({ ...head, content: [], seq: 0 }, head));
  }
  // A delta has its messages in the order of their last change.
  return [...messages, ...added.sort((one, other) => Date.parse(one.createdAt) - Date.parse(other.createdAt))];
}

/** Merge a head into a message: status and finish come from the head, content and seq from the parts that were folded here. */
function mergeHead(own: MessageState, head: Message): MessageState {
  const { content, seq } = head.content && head.seq >= own.seq ? { content: head.content, seq: head.seq } : own;
  const finish = head.finish ?? own.finish;
  return { ...own, ...head, content, seq, headSeq: head.seq, ...(finish && { finish }) };
}

/** Whether an unknown message is older than the loaded messages. */
function isOlderThan(head: Message, state: ThreadState): boolean {
  const oldest = state.messages[0];
  return state.hasMore && oldest !== undefined && Date.parse(head.createdAt) < Date.parse(oldest.createdAt);
}

function withParts(messages: MessageState[], parts: readonly Part[], hasMore: boolean): MessageState[] | null {
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
    if (before === undefined) continue; // of an older message that is not loaded
    const after = withMessageParts(before, own);
    if (after === null) return null;
    result[index] = after;
  }
  return result;
}

function withMessageParts(message: MessageState, parts: readonly Part[]): MessageState | null {
  const fresh: Part[] = [];
  for (const part of parts.toSorted((one, other) => one.seq - other.seq)) {
    const next = message.seq + fresh.length;
    if (part.seq > next) return null;
    if (part.seq === next) fresh.push(part);
  }
  if (fresh.length === 0) return message;
  const finish = newestData(fresh, "finish");
  const failure = newestData(fresh, "error");
  const currentStep = newestData(fresh, "step");
  const recall = newestData(fresh, "memory");
  const started = toolStartTimes(fresh);
  return {
    ...message,
    seq: message.seq + fresh.length,
    content: fold(message.content, fresh),
    ...(finish && { finish }),
    ...(failure && { failure }),
    ...(currentStep && { currentStep }),
    ...(recall && { memories: recall.memories.length }),
    ...(Object.keys(started).length > 0 && { toolStartedAt: { ...message.toolStartedAt, ...started } }),
  };
}

type DataOf = { [One in Part as One["kind"]]: One["data"] };

function newestData<Kind extends keyof DataOf>(parts: readonly Part[], kind: Kind): DataOf[Kind] | undefined {
  return parts.findLast((part) => part.kind === kind)?.data as DataOf[Kind] | undefined;
}

/** When tool calls started, by tool call id, in ms since the epoch on the server's clock. */
function toolStartTimes(parts: readonly Part[]): Record<string, number> {
  const running = parts.flatMap((part): [string, number][] =>
    part.kind === "tool-status" && part.data.state === "running" ? [[part.data.toolCallId, Date.parse(part.createdAt)]] : [],
  );
  return Object.fromEntries(running);
}

/** Whether an answer has ended by its head but some of its parts have not arrived. */
function lacksParts({ status, seq, headSeq = 0 }: MessageState): boolean {
  return ENDED.includes(status) && seq < headSeq;
}
