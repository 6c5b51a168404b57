// How the next run shall go: by what the person chose, and by the agent's template that is loaded.

import type { RunOptions } from "../khala/frames.ts";
import type { Preferences } from "./page-model.ts";

/** What a template has for a run. */
export type Template = { readonly id: string; readonly instructions: string; readonly tools?: readonly string[] };

export function runOptions(preferences: Preferences, template: Template | null): RunOptions {
  const { autopilot, maxSteps } = preferences;
  const said = template ? { instructions: template.instructions } : {};
  const tools = template?.tools?.length ? { tools: [...template.tools] } : {};
  return { ...said, ...tools, ...(autopilot && { autopilot, maxSteps, ...runBudget(preferences) }) };
}

/** Budgets are for runs on autopilot; what is no positive number is none. */
function runBudget({ budgetUsd, budgetTokens }: Preferences): Pick<RunOptions, "budget"> {
  const usd = budgetUsd.trim().replace(",", ".");
  const tokens = Math.floor(Number(budgetTokens));
  const budget = { ...(/^\d+(\.\d+)?$/.test(usd) && Number(usd) > 0 && { usd }), ...(tokens > 0 && Number.isFinite(tokens) && { tokens }) };
  return Object.keys(budget).length ? { budget } : {};
}
