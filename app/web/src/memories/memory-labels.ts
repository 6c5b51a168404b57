// Labels of memories: their origin, kind and use.

import type { Memory } from "@khala/client";

const KINDS: Readonly<Record<string, string>> = { fact: "Fact", preference: "Preference", instruction: "Instruction", summary: "Summary" };
const DATE: Intl.DateTimeFormatOptions = { day: "numeric", month: "short", year: "numeric" };

/** "Used 1 memory", "Used 3 memories" */
export function usedLabel(count: number): string {
  return `Used ${count.toLocaleString("en")} ${count === 1 ? "memory" : "memories"}`;
}

/** "Fact · This chat only · Used 3 times · Expires 12 Mar 2026". An unknown kind, as of a newer server, has its name. */
export function detailLabel({ kind, scope, agent, uses, expiresAt }: Pick<Memory, "kind" | "scope" | "agent" | "uses" | "expiresAt">): string {
  const where = scope === "thread" ? "This chat only" : scope === "agent" ? `Only with ${agent ?? "an agent"}` : null;
  const used = uses > 0 ? `Used ${uses === 1 ? "once" : `${uses.toLocaleString("en")} times`}` : null;
  return [KINDS[kind] ?? kind, where, used, expiresAt && `Expires ${dateLabel(expiresAt)}`].filter(Boolean).join(" · ");
}

/** "12 Mar 2026" */
export function dateLabel(time: string): string {
  return new Date(time).toLocaleDateString("en-GB", DATE);
}

/** The first words of a text, for the name of a button. */
export function shortText(text: string): string {
  return text.length > 60 ? `${text.slice(0, 59).trimEnd()}…` : text;
}
