// Labels of memories: their origin, kind and use.

import type { Memory } from "@khala/client";
import { m } from "../i18n/messages.ts";
import { formatDate, joinParts } from "../state/format.ts";

const KINDS: Readonly<Record<string, string>> = { fact: m.fact(), preference: m.preference(), instruction: m.instruction(), summary: m.summary() };

/** "Used 1 memory", "Used 3 memories" */
export function usedLabel(count: number): string {
  return m.used_memories({ count });
}

/** "Fact · This chat only · Used 3 times · Expires 12 Mar 2026". An unknown kind, as of a newer server, has its name. */
export function detailLabel({ kind, scope, agent, uses, expiresAt }: Pick<Memory, "kind" | "scope" | "agent" | "uses" | "expiresAt">): string {
  const where = scope === "thread" ? m.this_chat_only() : scope === "agent" ? (agent === undefined ? m.only_with_an_agent() : m.only_with_agent({ agent })) : null;
  const used = uses > 0 ? m.used_times({ count: uses }) : null;
  return joinParts([KINDS[kind] ?? kind, where, used, expiresAt && m.expires_at({ time: dateLabel(expiresAt) })]);
}

/** "12 Mar 2026" */
export function dateLabel(time: string): string {
  return formatDate(time);
}

/** The first words of a text, for the name of a button. */
export function shortText(text: string): string {
  return text.length > 60 ? `${text.slice(0, 59).trimEnd()}…` : text;
}
