// The responses of the console's API: see docs/reference/console.md. Times are texts as in RFC 3339, amounts decimal texts.

export type * from "./run-types.ts";
export type * from "./thread-types.ts";

export interface ConsolePage<Item> {
  readonly items: readonly Item[];
  readonly nextCursor: string | null;
  /** Of lists whose filters are examined row by row: newer matches are all in this page or an earlier one. */
  readonly examinedUntil?: string | null;
}

export interface AccountName {
  readonly id: string;
  readonly name: string | null;
  readonly email: string | null;
}

export interface Overview {
  readonly queue: { readonly queued: number; readonly running: number; readonly blocked: number; readonly oldestSeconds: number | null; readonly silentSeconds: number | null };
  readonly executors: { readonly alive: number; readonly places: number; readonly active: number };
  readonly failuresLastHour: number;
  readonly canceledLastHour: number;
  readonly approvalsWaiting: number;
  readonly webhooks: { readonly waiting: number; readonly oldestSeconds: number | null; readonly failing: number; readonly disabled: number };
  readonly spendToday: Totals;
  readonly countedUntil: string | null;
  readonly at: string;
}

export interface Totals {
  readonly usd: string;
  readonly modelCalls: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
}

export interface ExecutorItem {
  readonly id: string;
  readonly kind: string;
  readonly host: string | null;
  readonly version: string | null;
  readonly places: number | null;
  readonly running: number;
  readonly lapsed: number;
  readonly oldestRunAt: string | null;
  readonly leaseExpiresAt: string | null;
  readonly startedAt: string | null;
  readonly seenAt: string | null;
  readonly runs: readonly string[];
}

export interface ExecutorPage {
  readonly items: readonly ExecutorItem[];
}

export interface SlowTool {
  readonly tool: string;
  readonly source: string;
  readonly calls: number;
  readonly failures: number;
  readonly p50Ms: number;
  readonly p95Ms: number;
  readonly meanMs: number;
  readonly maxMs: number;
  readonly slowestRunId: string | null;
}

export interface SlowTools {
  readonly items: readonly SlowTool[];
  readonly countedUntil: string | null;
}

export interface SpendItem extends Totals {
  readonly day?: string | null;
  readonly account?: AccountName | null;
  readonly provider?: string | null;
  readonly model?: string | null;
}

export interface SpendReport {
  readonly items: readonly SpendItem[];
  readonly total: Totals;
  readonly from: string;
  readonly to: string;
  readonly countedUntil: string | null;
}

export interface BudgetLimit {
  readonly scope: string;
  readonly measure: string;
  readonly most: string;
  readonly window: number | null;
  readonly used: string | null;
  readonly reserved: string | null;
  readonly endsAt: string | null;
}

export interface BudgetPlan {
  readonly name: string;
  readonly limits: AccountLimits;
}

export interface BudgetOverview {
  readonly limits: readonly BudgetLimit[];
  readonly plans: readonly BudgetPlan[];
  readonly defaultPlan: string | null;
}

/** Null leaves the limit of the plan, 0 means none. */
export interface AccountLimits {
  readonly runsPerHour: number | null;
  readonly usdPerDay: string | null;
  readonly tokensPerDay: number | null;
}

export interface AccountBudget {
  readonly account: AccountName;
  readonly plan: string | null;
  readonly override: AccountLimits | null;
  readonly usage: readonly BudgetLimit[];
}

export interface AccountItem extends AccountName {
  readonly createdAt: string;
  readonly blockedAt: string | null;
  readonly admin: boolean;
  readonly plan: string | null;
  readonly deleting: boolean;
}

export interface AccountDetail extends AccountItem {
  readonly identities: readonly { readonly issuer: string; readonly email: string | null }[];
  readonly sessions: number;
  readonly apiTokens: number;
  readonly threads: number;
  readonly activeRuns: number;
}

export interface BlobItem {
  readonly id: string;
  readonly threadId: string;
  readonly runId: string | null;
  readonly size: number;
  readonly mediaType: string;
  readonly createdAt: string;
  readonly owner: AccountName | null;
}

export interface BlobUsage {
  readonly items: readonly { readonly owner: AccountName | null; readonly blobs: number; readonly bytes: number }[];
  readonly objects: number;
  readonly bytes: number;
  readonly orphans: number;
  readonly orphanBytes: number;
  readonly countedAt: string | null;
}

export interface WebhookItem {
  readonly id: string;
  readonly owner: AccountName | null;
  readonly deployment: boolean;
  readonly host: string;
  readonly events: readonly string[];
  readonly enabled: boolean;
  readonly disabledReason: string | null;
  readonly failures: number;
  readonly failingSince: string | null;
  readonly pausedUntil: string | null;
  readonly pending: number;
  readonly createdAt: string;
}

export interface DeliveryItem {
  readonly id: string;
  readonly seq: string;
  readonly type: string;
  readonly threadId: string | null;
  readonly revision: number | null;
  readonly state: string;
  readonly attempts: number;
  readonly status: number | null;
  readonly error: string | null;
  readonly durationMs: number | null;
  readonly createdAt: string;
  readonly attemptedAt: string | null;
  readonly nextAttemptAt: string | null;
}

export interface ReplayRequest {
  readonly since?: string;
  readonly threadId?: string;
  readonly after?: string;
  readonly reason?: string;
}

export interface ReplayResult {
  readonly replayed: number;
  /** Where to go on; absent if there are no more. */
  readonly next?: string | null;
}

export interface ScheduleItem {
  readonly id: string;
  readonly owner: AccountName | null;
  readonly kind: string;
  readonly threadId: string | null;
  readonly status: string;
  readonly reason: string | null;
  readonly cron: string | null;
  readonly at: string | null;
  readonly timeZone: string | null;
  readonly nextAt: string | null;
  readonly lastAt: string | null;
  readonly lastRunId: string | null;
  readonly lastThreadId: string | null;
  readonly failures: number;
  readonly createdAt: string;
}

export interface AuditItem {
  readonly id: string;
  readonly account: AccountName | null;
  readonly accountId: string | null;
  readonly action: string;
  readonly threadId: string | null;
  readonly network: string | null;
  readonly detail: Readonly<Record<string, unknown>>;
  readonly createdAt: string;
}
