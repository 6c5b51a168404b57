// The approvals of runs, read once for all cards of a run.

import type { Approval, Items } from "@khala/client";
import type { ChatView } from "../state/page-model.ts";
import { LruCache } from "./lru-cache.ts";

const MAX_RUNS = 50;
/** The server's reason on a call that a person approved. */
const APPROVED = /^Approved\b/;

const known = new LruCache<string, Promise<readonly Approval[]>>(MAX_RUNS);

type Caller = Pick<ChatView, "call">;

/** All approvals of a run as the server has them now. Errors as those of `request`. */
export async function readApprovals(chat: Caller, runId: string): Promise<readonly Approval[]> {
  const found = chat.call<Items<Approval>>("GET", `/api/runs/${runId}/approvals`).then(({ items }) => items);
  known.set(runId, found);
  return await found;
}

/** The address of a decision about a call. */
export function decisionPath(runId: string, toolCallId: string): string {
  return `/api/runs/${runId}/approvals/${encodeURIComponent(toolCallId)}`;
}

/** Whether a person approved this call, by the reason of its block. */
export function wasApproved(reason: string | undefined): boolean {
  return reason !== undefined && APPROVED.test(reason);
}

/** The approval of a call that was decided; null if there is none. A run's list is read again only if it lacks the decision. */
export async function decidedApproval(chat: Caller, runId: string, toolCallId: string): Promise<Approval | null> {
  const decided = (items: readonly Approval[]) => items.find((one) => one.toolCallId === toolCallId && one.state !== "pending") ?? null;
  const before = await known.get(runId)?.catch(() => null);
  const found = before ? decided(before) : null;
  return found ?? decided(await readApprovals(chat, runId));
}
