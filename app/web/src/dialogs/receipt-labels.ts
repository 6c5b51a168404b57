// Labels of the receipts of calls outside of answers.

import type { UsageReceipt } from "@khala/client";
import { formatDateTime, formatUsd, joinParts } from "../state/format.ts";
import { m } from "../i18n/messages.ts";

const PURPOSES: Readonly<Record<string, string>> = { extraction: m.remembering_facts(), embedding: m.search_and_memories(), title: m.chat_titles() };

/** "Remembering facts · gpt-5-mini". An unknown purpose, as of a newer server, has its name. */
export function receiptTitle({ purpose, data }: Pick<UsageReceipt, "purpose" | "data">): string {
  return joinParts([PURPOSES[purpose] ?? purpose, typeof data.model === "string" && data.model]);
}

/** "1,100 tokens · $0.0002 · 12 Mar 2026, 12:00" */
export function receiptDetail({ data, costUsd, createdAt }: Pick<UsageReceipt, "data" | "costUsd" | "createdAt">): string {
  const tokens = tokensOf(data.usage);
  return joinParts([tokens > 0 && m.tokens_count({ count: tokens }), costUsd !== undefined && formatUsd(Number(costUsd)), formatDateTime(createdAt)]);
}

function tokensOf(usage: unknown): number {
  if (typeof usage !== "object" || usage === null) return 0;
  const { inputTokens = 0, outputTokens = 0 } = usage as { inputTokens?: unknown; outputTokens?: unknown };
  return Number(inputTokens) + Number(outputTokens);
}
