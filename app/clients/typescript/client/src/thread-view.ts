// A thread as a user interface shows it: the folded state of the active branch, and the messages that still wait to be sent.

import { pathTo } from "./branches.ts";
import type { Block, Participant } from "./frames.ts";
import type { OutboxEntry, OutboxState } from "./outbox.ts";
import type { MessageState, ThreadState } from "./state.ts";
import { activeAnswer } from "./state.ts";

/** A message, and for one that the server has not confirmed yet, the state of its delivery. */
export type ThreadMessage = MessageState & { readonly delivery?: OutboxState };

/** An error that ended a subscription: a stable code and a message for people. */
export interface SubscriptionError {
  readonly code: string;
  readonly message: string;
}

/**
 * The state of a subscription: "idle", nobody follows it; "connecting", nothing has arrived yet; "live"; "reconnecting", the
 * connection was lost and comes back by itself; "refused", the server refuses it, and `error` says why.
 */
export type SubscriptionStatus = "idle" | "connecting" | "live" | "reconnecting" | "refused";

/** A thread at one moment. Immutable; parts that did not change stay the same objects. */
export interface ThreadView {
  readonly threadId: string;
  readonly status: SubscriptionStatus;
  readonly error: SubscriptionError | null;
  /** The folded state. Plain JSON: store it, and give it to the next client as `initial`. */
  readonly state: ThreadState;
  /** The messages of the active branch in order, then those that wait to be sent. */
  readonly messages: readonly ThreadMessage[];
  /** The answer that is being written, null if there is none. */
  readonly activeAnswer: MessageState | null;
}

/** Who is present in a thread, once for each tab: at most 50, those who changed last first, and how many more. */
export interface PresenceView {
  readonly participants: readonly Participant[];
  readonly more: number;
}

/**
 * The people among the participants, each once, however many tabs they have open: accounts by their id, others by `person` in
 * their state, a text that the application gives to all tabs of a browser. Without it, each tab counts.
 */
export function peopleOf(participants: readonly Participant[]): Participant[] {
  const found = new Map<string, Participant>();
  for (const one of participants) {
    const { person } = one.state;
    const key = one.userId !== undefined ? `user ${one.userId}` : typeof person === "string" ? `person ${person}` : `tab ${one.id}`;
    if (!found.has(key)) found.set(key, one);
  }
  return [...found.values()];
}

/** Queued messages by entry, so that an unchanged entry stays the same object. */
const queuedMessages = new WeakMap<OutboxEntry, ThreadMessage>();

/** The view of a thread. `queued` are the messages of the outbox, of any thread. */
export function viewOf(threadId: string, status: SubscriptionStatus, error: SubscriptionError | null, state: ThreadState, queued: readonly OutboxEntry[]): ThreadView {
  const path = pathTo(state.messages, state.thread?.activeLeaf);
  const arrived = new Set(state.messages.map(({ id }) => id));
  const waiting = queued.filter((entry) => entry.threadId === threadId && !arrived.has(entry.id)).map(toMessage);
  return { threadId, status, error, state, messages: waiting.length ? [...path, ...waiting] : path, activeAnswer: activeAnswer(state) };
}

function toMessage(entry: OutboxEntry): ThreadMessage {
  const known = queuedMessages.get(entry);
  if (known) return known;
  const { id, threadId, text, attachments, state } = entry;
  const createdAt = new Date(createdAtOf(id)).toISOString();
  const files = attachments.map((blob): Block => ({ type: "file", blob }));
  const content: Block[] = [...(text ? [{ type: "text" as const, text }] : []), ...files];
  const message: ThreadMessage = { id, threadId, role: "user", status: "final", seq: 0, content, createdAt, updatedAt: createdAt, delivery: state };
  queuedMessages.set(entry, message);
  return message;
}

/** The time in a UUID of version 7, in ms since the epoch; 0 for any other id. */
function createdAtOf(id: string): number {
  return /^[0-9a-f]{8}-[0-9a-f]{4}-7/.test(id) ? Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16) : 0;
}
