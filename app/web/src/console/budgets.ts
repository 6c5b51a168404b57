// How budgets are named and edited.

import { textOf } from "./form-fields.ts";
import { formatCount, formatDuration, formatUsd, humanize } from "./format.ts";
import type { AccountLimits, BudgetLimit } from "./types.ts";

const SCOPES: Readonly<Record<string, string>> = {
  key: "Each guest",
  user: "Each account",
  accounts: "All accounts together",
  anonymous: "All guests together",
  thread: "Each thread",
  network: "Each network",
  run: "Each run",
};
const MEASURES: Readonly<Record<string, string>> = { usd: "cost", tokens: "tokens", runs: "runs", seconds: "time" };
const WINDOWS: Readonly<Record<number, string>> = { 3600: "an hour", 86400: "a day", 604800: "a week", 2592000: "in 30 days" };

export const OVERRIDE_FIELDS = [
  { name: "runsPerHour", label: "Runs an hour", step: "1" },
  { name: "usdPerDay", label: "Cost a day, in USD", step: "any" },
  { name: "tokensPerDay", label: "Tokens a day", step: "1" },
] as const satisfies readonly { name: keyof AccountLimits; label: string; step: string }[];

/** "Cost" */
export function measureName(measure: string): string {
  return humanize(MEASURES[measure] ?? measure);
}

/** "All guests together: cost" */
export function limitName({ scope, measure }: Pick<BudgetLimit, "scope" | "measure">): string {
  return `${SCOPES[scope] ?? humanize(scope)}: ${measureName(measure).toLowerCase()}`;
}

/** "$0.50 a day"; a limit without a window is for all that its scope ever uses. */
export function mostText({ measure, most, window }: Pick<BudgetLimit, "measure" | "most" | "window">): string {
  return `${amount(measure, most)} ${window === null ? "in all" : (WINDOWS[window] ?? `in ${formatDuration(1000 * window)}`)}`;
}

/** An amount of a measure: "$1.50", "20 s", "1,000". */
export function amount(measure: string, value: string): string {
  if (measure === "usd") return formatUsd(value);
  return measure === "seconds" ? formatDuration(1000 * Number(value)) : formatCount(Number(value));
}

/** The limits that the form has. Empty fields are null. */
export function limitsFrom(fields: FormData): AccountLimits {
  const number = (name: string) => (textOf(fields, name) === "" ? null : Number(textOf(fields, name)));
  return { runsPerHour: number("runsPerHour"), usdPerDay: textOf(fields, "usdPerDay") || null, tokensPerDay: number("tokensPerDay") };
}

/** "Plan “pro”. This account has limits of its own." */
export function planText(plan: string | null, override: AccountLimits | null): string {
  const named = plan === null ? "Default limits." : `Plan “${plan}”.`;
  return override === null ? named : `${named} This account has limits of its own.`;
}

/** "10 runs an hour, $2.00 a day", or that there is no limit. */
export function limitsText({ runsPerHour, usdPerDay, tokensPerDay }: AccountLimits): string {
  const texts = [
    runsPerHour ? `${formatCount(runsPerHour)} runs an hour` : "",
    usdPerDay !== null && Number(usdPerDay) > 0 ? `${formatUsd(usdPerDay)} a day` : "",
    tokensPerDay ? `${formatCount(tokensPerDay)} tokens a day` : "",
  ].filter(Boolean);
  return texts.join(", ") || "No limit";
}
