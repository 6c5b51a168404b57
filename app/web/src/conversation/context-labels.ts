// Labels of what a model was told: sections, what was left out, and why.

import type { ContextCall, ContextSection, LeftOut } from "@khala/client";
import { m } from "../i18n/messages.ts";
import { formatNumber, formatUnits } from "../state/format.ts";

const SECTIONS: Readonly<Record<ContextSection["name"], string>> = {
  instructions: m.instructions(),
  memories: m.memories(),
  summary: m.summary_of_older_messages(),
  turns: m.messages_and_rounds(),
  files: m.files(),
  tools: m.tools(),
  folderFiles: m.files_of_the_folder(),
};

/** The labels by name. A section of a newer server has none. */
const SECTION_LABELS: Readonly<Record<string, string>> = SECTIONS;
const TONES = Object.keys(SECTIONS);

/** What a reference such as `message:ID` names, with its number. */
const KINDS: Readonly<Record<string, (inputs: { count: number }) => string>> = {
  message: m.kind_message,
  turn: m.kind_message,
  step: m.kind_round,
  blob: m.kind_file,
  memory: m.kind_memory,
  tools: m.kind_tool,
  summary: m.kind_summary,
};

const REASONS: Readonly<Record<string, string>> = {
  limit: m.over_the_token_limit(),
  share: m.over_the_limit_of_this_section(),
  shortened: m.only_the_beginning_included(),
  summarised: m.replaced_by_the_summary(),
  unrelated: m.unrelated_to_the_chat_the_model_can_search(),
  unread: m.too_many_files_or_too_large(),
};

const FAILURES: Readonly<Record<string, string>> = {
  canceled: m.stopped(),
  context_exceeded: m.too_long_for_the_model(),
  budget_exhausted: m.limit_reached(),
};
const SUCCESSES = new Set(["stop", "length", "tool_calls"]);

/** "Messages and steps"; an unknown section, as of a newer server, has its name. */
export function sectionLabel(name: string): string {
  return SECTION_LABELS[name] ?? name;
}

/** The number of the section's colour. */
export function sectionTone(name: string): number {
  return Math.max(0, TONES.indexOf(name));
}

/** "1 token", "2,410 tokens" */
export function tokensLabel(tokens: number): string {
  return m.tokens_count({ count: tokens });
}

/** "12 messages: replaced by the summary". An unknown reason or reference, as of a newer server, is shown as it is. */
export function leftOutLabel({ what, why, count = 1 }: LeftOut): string {
  const kind = what.split(":", 1)[0] ?? what;
  return `${KINDS[kind]?.({ count }) ?? `${formatNumber(count)} ${kind}`}: ${REASONS[why] ?? why}`;
}

/** The tokens of all sections together. */
export function totalTokens({ sections }: Pick<ContextCall, "sections">): number {
  return sections.reduce((sum, { tokens }) => sum + tokens, 0);
}

/** Each section's share of the limit in percent, for the bar. */
export function barParts({ sections, limit }: Pick<ContextCall, "sections" | "limit">): { name: string; percent: number }[] {
  const whole = Math.max(limit, totalTokens({ sections }), 1);
  return sections.filter(({ tokens }) => tokens > 0).map(({ name, tokens }) => ({ name, percent: (100 * tokens) / whole }));
}

/** The bar in words: "Instructions 120, Tools 2,300, of 32,000 tokens". */
export function barLabel({ sections, limit }: Pick<ContextCall, "sections" | "limit">): string {
  const parts = sections.filter(({ tokens }) => tokens > 0).map(({ name, tokens }) => `${sectionLabel(name)} ${formatNumber(tokens)}`);
  return formatUnits([...parts, m.of_tokens({ tokens: tokensLabel(limit) })]);
}

/** The title of a call: "Model call 2 · summary of older messages". */
export function callLabel(call: Pick<ContextCall, "purpose">, index: number): string {
  return (call.purpose === "summary" ? m.call_number_summary : m.call_number)({ number: formatNumber(index + 1) });
}

/** Why the call gave no reply, or null. */
export function failureLabel({ outcome }: Pick<ContextCall, "outcome">): string | null {
  return SUCCESSES.has(outcome) ? null : (FAILURES[outcome] ?? m.failed());
}
