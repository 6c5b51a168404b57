// Runs in the responses of the console's API.

import type { AccountName } from "./types.ts";

export type RunState = "queued" | "running" | "blocked" | "final" | "error" | "canceled";

export interface RunItem {
  readonly id: string;
  readonly threadId: string;
  readonly messageId: string;
  readonly state: RunState;
  readonly agent: string | null;
  readonly model: string | null;
  readonly provider: string | null;
  readonly account: AccountName | null;
  readonly planId: string | null;
  readonly remote: boolean;
  readonly attempt: number;
  readonly lost: number;
  readonly steps: number;
  readonly executor: string | null;
  readonly leaseExpiresAt: string | null;
  readonly cancelRequestedAt: string | null;
  /** When an executor first claimed it; null also for runs that began under an older version. */
  readonly startedAt: string | null;
  readonly finishedAt: string | null;
  readonly createdAt: string;
  readonly totalMs: number | null;
  readonly reason: string | null;
  readonly usd: string | null;
  readonly inputTokens: number | null;
  readonly outputTokens: number | null;
}

export type RunEventKind = "queued" | "step" | "model" | "tool" | "approval" | "notice" | "error" | "cancel_requested" | "finished";

export interface RunEvent {
  readonly kind: RunEventKind;
  readonly at: string;
  readonly startedAt: string | null;
  readonly durationMs: number | null;
  readonly seq: number | null;
  readonly step: number | null;
  /** Of `model`: the number of the call since an executor began. */
  readonly attempt: number | null;
  readonly provider: string | null;
  readonly model: string | null;
  readonly tool: string | null;
  readonly toolCallId: string | null;
  readonly source: string | null;
  readonly outcome: string | null;
  readonly code: string | null;
  readonly usd: string | null;
  readonly inputTokens: number | null;
  readonly outputTokens: number | null;
  readonly firstTokenMs: number | null;
  readonly estimated: boolean | null;
  readonly bytes: number | null;
  readonly decidedBy: string | null;
  readonly decidedAt: string | null;
  readonly expiresAt: string | null;
}

export interface ConsoleRunHistory {
  readonly run: RunItem;
  readonly timeline: readonly RunEvent[];
  readonly truncated: boolean;
  readonly packed: boolean;
}

export type RunAction = "cancel" | "end" | "requeue" | "retry";

export interface RunChange {
  readonly run: RunItem;
  readonly changed: boolean;
}
