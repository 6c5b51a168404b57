// What the page and the stream worker say to each other. The page says `taken` for each batch that it has shown; before that
// no other comes, so what changes meanwhile comes together, as one.

import type { Invitation, Listed, Message, Older, Participant } from "../khala/frames.ts";
import type { ThreadPatch } from "../khala/patches.ts";

export type ThreadKeys = { anonKey?: string; shareKey?: string };

export type ToStream =
  | { type: "start"; url: string }
  /** Follow this thread, after a `leave` of the same `generation`, or again with other keys, for the `asked`th time in all; `who` is the account, or null. */
  | { type: "follow"; generation: number; attempt: number; threadId: string; keys: ThreadKeys; who: string | null }
  | { type: "leave"; generation: number }
  | { type: "watch"; isOn: boolean }
  | { type: "present"; state: Record<string, unknown> | null }
  /** Who we are is about to change; connect anew at `release`. */
  | { type: "hold" }
  | { type: "release" }
  | { type: "earlier"; threadId: string; page: Older<Message> }
  | { type: "wake"; isOnline: boolean }
  | { type: "taken" }
  /** Forget what is stored of this thread, or of all. */
  | { type: "forget"; threadId: string }
  | { type: "clear" };

/** What changed of the account's list; with `whole`, `entries` are all of it. `invitations` are always all. */
export type ListPatch = { whole: boolean; revision: number | null; entries: Listed[]; removed: string[]; hasMore: boolean; invitations: readonly Invitation[] };

/** What changed since the batch before; what concerns a thread is of the one that was followed in this `generation`. */
export type Batch = {
  generation: number;
  patch?: ThreadPatch;
  /** The thread is shown from the browser's store; false once the server has told. */
  isStale?: boolean;
  /** The thread was reset since. */
  wasReset?: true;
  /** How far our clock is ahead of the server's, in ms, at most. */
  lag?: number;
  list?: ListPatch;
  present?: { participants: Participant[]; more: number };
  connection?: { phase: "connecting" | "live" | "waiting"; until?: number };
  /** The server does not let us follow the thread, as we have `asked` last. */
  refusal?: { code: string; message: string; attempt: number };
  signedOut?: true;
};
