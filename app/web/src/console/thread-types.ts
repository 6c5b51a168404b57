// Threads in the responses of the console's API.

import type { AccountName } from "./types.ts";

export interface ThreadItem {
  readonly id: string;
  readonly owner: AccountName | null;
  readonly visibility: string;
  readonly revision: number;
  readonly oldestRevision: number;
  readonly activeRuns: number;
  readonly createdAt: string;
  readonly updatedAt: string;
}

export interface ThreadGrant {
  readonly grant: string;
  readonly expiresAt: string;
}

export interface RevisionItem {
  readonly messageId: string;
  readonly parentId: string | null;
  readonly role: string;
  readonly runId: string | null;
  readonly state: string;
  readonly createdRevision: number;
  readonly revision: number;
  readonly createdAt: string;
  readonly changes: readonly { readonly revision: number; readonly at: string; readonly parts: number; readonly kinds: readonly string[] }[];
  readonly changesTruncated: boolean;
  readonly packed: boolean;
}

/** A block of a message's content; its other fields depend on its type. */
export interface PastBlock {
  readonly type: string;
  readonly [field: string]: unknown;
}

export interface PastMessage {
  readonly id: string;
  readonly parentId: string | null;
  readonly role: string;
  readonly status: string;
  readonly runId: string | null;
  readonly authorName: string | null;
  readonly content: readonly PastBlock[] | null;
  readonly createdAt: string;
}

export interface Gap {
  readonly kind: string;
  readonly messageId: string | null;
  readonly runId: string | null;
  readonly text: string;
}

export interface PastThread {
  readonly threadId: string;
  readonly revision: number;
  readonly currentRevision: number;
  readonly oldestRevision: number;
  readonly title: string | null;
  readonly titleExact: boolean;
  readonly messages: readonly PastMessage[];
  readonly hasMore: boolean;
  readonly gaps: readonly Gap[];
}

export interface ThreadFork {
  readonly threadId: string;
  readonly messages: number;
  readonly gaps: readonly Gap[];
}
