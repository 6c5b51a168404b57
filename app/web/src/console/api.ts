// The console's API: one function for each route of docs/reference/console.md.

import { request } from "@khala/client";
import type { AccountBudget, AccountDetail, AccountItem, AccountLimits, AuditItem, BlobItem, BlobUsage, BudgetOverview, ConsolePage, ConsoleRunHistory, DeliveryItem, ExecutorPage, Overview, PastThread, ReplayRequest, ReplayResult, RevisionItem, RunAction, RunChange, RunItem, ScheduleItem, SlowTools, SpendReport, ThreadFork, ThreadGrant, ThreadItem, WebhookItem } from "./types.ts";

/** Query parameters; empty and undefined ones are left out. */
type Query = Readonly<Record<string, string | number | undefined>>;

function read<T>(path: string, query: Query, signal?: AbortSignal): Promise<T> {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return request<T>("GET", `/api/console${path}${text && `?${text}`}`, signal ? { signal } : {});
}

function act<T>(method: "POST" | "PUT", path: string, body: object): Promise<T> {
  return request<T>(method, `/api/console${path}`, { body });
}

/** A path of segments, which are encoded. */
function at(...segments: readonly string[]): string {
  return segments.map((segment) => `/${encodeURIComponent(segment)}`).join("");
}

/** An empty reason is left out. */
function withReason(reason: string): { reason?: string } {
  return reason.trim() === "" ? {} : { reason: reason.trim() };
}

export const api = {
  overview: (signal: AbortSignal) => read<Overview>("/overview", {}, signal),

  runs: (query: Query, signal: AbortSignal) => read<ConsolePage<RunItem>>("/runs", query, signal),
  run: (id: string, signal: AbortSignal) => read<ConsoleRunHistory>(at("runs", id), {}, signal),
  changeRun: (id: string, action: RunAction, reason: string) => act<RunChange>("POST", at("runs", id, action), withReason(reason)),

  threads: (query: Query, signal: AbortSignal) => read<ConsolePage<ThreadItem>>("/threads", query, signal),
  thread: (id: string, signal: AbortSignal) => read<ThreadItem>(at("threads", id), {}, signal),
  openThread: (id: string, reason: string) => act<ThreadGrant>("POST", at("threads", id, "open"), withReason(reason)),
  revisions: (id: string, query: Query, signal: AbortSignal) => read<ConsolePage<RevisionItem>>(at("threads", id, "revisions"), query, signal),
  threadAt: (id: string, query: Query, signal: AbortSignal) => read<PastThread>(at("threads", id, "at"), query, signal),
  forkThread: (id: string, revision: number, grant: string, reason: string) => act<ThreadFork>("POST", at("threads", id, "fork"), { revision, grant, ...withReason(reason) }),

  executors: (signal: AbortSignal) => read<ExecutorPage>("/executors", {}, signal),
  slowTools: (query: Query, signal: AbortSignal) => read<SlowTools>("/tools/slow", query, signal),
  spend: (by: "user" | "model" | "day", query: Query, signal: AbortSignal) => read<SpendReport>("/spend", { by, ...query }, signal),

  budgets: (signal: AbortSignal) => read<BudgetOverview>("/budgets", {}, signal),
  accountBudget: (id: string, signal: AbortSignal) => read<AccountBudget>(at("budgets", id), {}, signal),
  setAccountBudget: (id: string, limits: AccountLimits | null, reason: string) => act<AccountBudget>("PUT", at("budgets", id), { limits, ...withReason(reason) }),

  accounts: (query: Query, signal: AbortSignal) => read<ConsolePage<AccountItem>>("/accounts", query, signal),
  account: (id: string, signal: AbortSignal) => read<AccountDetail>(at("accounts", id), {}, signal),
  setAccountBlocked: (id: string, isBlocked: boolean, reason: string) => act<AccountDetail>("POST", at("accounts", id, isBlocked ? "block" : "unblock"), withReason(reason)),

  blobs: (query: Query, signal: AbortSignal) => read<ConsolePage<BlobItem>>("/blobs", query, signal),
  blobUsage: (signal: AbortSignal) => read<BlobUsage>("/blobs/usage", {}, signal),

  webhooks: (query: Query, signal: AbortSignal) => read<ConsolePage<WebhookItem>>("/webhooks", query, signal),
  webhook: (id: string, signal: AbortSignal) => read<WebhookItem>(at("webhooks", id), {}, signal),
  deliveries: (id: string, query: Query, signal: AbortSignal) => read<ConsolePage<DeliveryItem>>(at("webhooks", id, "deliveries"), query, signal),
  replayWebhook: (id: string, body: ReplayRequest) => act<ReplayResult>("POST", at("webhooks", id, "replay"), body),

  schedules: (query: Query, signal: AbortSignal) => read<ConsolePage<ScheduleItem>>("/schedules", query, signal),
  audit: (query: Query, signal: AbortSignal) => read<ConsolePage<AuditItem>>("/audit", query, signal),
};
