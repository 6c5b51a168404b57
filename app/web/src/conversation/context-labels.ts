// Labels of what a model was told: sections, what was left out, and why.

import type { ContextCall, ContextSection, LeftOut } from "@khala/client";

const SECTIONS: Readonly<Record<ContextSection["name"], string>> = {
  instructions: "Instructions",
  memories: "Memories",
  summary: "Summary of older messages",
  turns: "Messages and steps",
  files: "Files",
  tools: "Tools",
};

/** The labels by name. A section of a newer server has none. */
const SECTION_LABELS: Readonly<Record<string, string>> = SECTIONS;
const TONES = Object.keys(SECTIONS);

/** What a reference such as `message:ID` names, as singular and plural. */
const KINDS: Readonly<Record<string, readonly [string, string]>> = {
  message: ["message", "messages"],
  turn: ["message", "messages"],
  step: ["step", "steps"],
  blob: ["file", "files"],
  memory: ["memory", "memories"],
  tools: ["tool", "tools"],
  summary: ["summary", "summaries"],
};

const REASONS: Readonly<Record<string, string>> = {
  limit: "over the token limit",
  share: "over the limit of this section",
  shortened: "only the beginning included",
  summarised: "replaced by the summary",
  unrelated: "unrelated to the chat; the model can search for more",
  unread: "too many files, or too large",
};

const FAILURES: Readonly<Record<string, string>> = {
  canceled: "Stopped",
  context_exceeded: "Too long for the model",
  budget_exhausted: "Limit reached",
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
  return `${tokens.toLocaleString("en")} ${tokens === 1 ? "token" : "tokens"}`;
}

/** "12 messages: replaced by the summary". An unknown reason or reference, as of a newer server, is shown as it is. */
export function leftOutLabel({ what, why, count = 1 }: LeftOut): string {
  const kind = what.split(":", 1)[0] ?? what;
  const [one, many] = KINDS[kind] ?? [kind, kind];
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}: ${REASONS[why] ?? why}`;
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
  const parts = sections.filter(({ tokens }) => tokens > 0).map(({ name, tokens }) => `${sectionLabel(name)} ${tokens.toLocaleString("en")}`);
  return [...parts, `of ${limit.toLocaleString("en")} tokens`].join(", ");
}

/** The title of a call: "Call 2 · summary". */
export function callLabel(call: Pick<ContextCall, "purpose">, index: number): string {
  return `Call ${index + 1}${call.purpose === "summary" ? " · summary of older messages" : ""}`;
}

/** Why the call gave no reply, or null. */
export function failureLabel({ outcome }: Pick<ContextCall, "outcome">): string | null {
  return SUCCESSES.has(outcome) ? null : (FAILURES[outcome] ?? "Failed");
}
