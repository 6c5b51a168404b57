// The messages between the page and the stream worker. The page answers each batch with `taken` once it has shown it. The
// worker posts the next batch only after that, with all changes in between.

import type { Invitation, Message, OlderMessages, Participant, ThreadListEntry, ThreadPatch } from "@khala/client";

export type ThreadKeys = { anonKey?: string; shareKey?: string };

export type ToStream =
  | { type: "start"; url: string }
  /** Follow this thread after a `leave` of the same `generation`, or again with other keys. `attempt` counts all `follow` messages. `who` is the account's id, or null. */
  | { type: "follow"; generation: number; attempt: number; threadId: string; keys: ThreadKeys; who: string | null }
  | { type: "leave"; generation: number }
  | { type: "watch"; isOn: boolean }
  | { type: "present"; state: Record<string, unknown> | null }
  /** The identity is about to change. The worker reconnects at `release`. */
  | { type: "hold" }
  | { type: "release" }
  | { type: "earlier"; threadId: string; page: OlderMessages<Message> }
  | { type: "wake"; isOnline: boolean }
  | { type: "taken" }
  /** Delete the stored snapshot of this thread, or of all threads. */
  | { type: "forget"; threadId: string }
  | { type: "clear" };

/** The changes of the thread list. If `whole`, `entries` are the whole list. `invitations` are always complete. */
export type ListPatch = { whole: boolean; revision: number | null; entries: ThreadListEntry[]; removed: string[]; hasMore: boolean; invitations: readonly Invitation[] };

/** The changes since the previous batch. Everything about a thread concerns the one that was followed in this `generation`. */
export type Batch = {
  generation: number;
  patch?: ThreadPatch;
  /** True while the thread is shown from the browser's storage, false once the server has answered. */
  isStale?: boolean;
  /** The thread was reset since the previous batch. */
  wasReset?: true;
  /** An upper bound of how far this clock is ahead of the server's, in ms. */
  lag?: number;
  list?: ListPatch;
  present?: { participants: Participant[]; more: number };
  connection?: { phase: "connecting" | "live" | "waiting"; until?: number };
  /** The server refused the subscription of this `attempt`. */
  refusal?: { code: string; message: string; attempt: number };
  signedOut?: true;
};
