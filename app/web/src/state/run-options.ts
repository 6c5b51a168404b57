// The options of the next run, from the person's settings and the loaded agent template.

import type { RunOptions } from "../khala/frames.ts";
import type { Preferences } from "./page-model.ts";

/** The fields of a template that concern a run. */
export type Template = { readonly id: string; readonly instructions: string; readonly tools?: readonly string[] };

export function runOptions(preferences: Preferences, template: Template | null): RunOptions {
  const { autopilot, maxSteps } = preferences;
  const instructions = template ? { instructions: template.instructions } : {};
  const tools = template?.tools?.length ? { tools: [...template.tools] } : {};
  return { ...instructions, ...tools, ...(autopilot && { autopilot, maxSteps, ...runBudget(preferences) }) };
}

/** Budgets apply to runs on autopilot only. Anything but a positive number means no budget. */
function runBudget({ budgetUsd, budgetTokens }: Preferences): Pick<RunOptions, "budget"> {
  const usd = budgetUsd.trim().replace(",", ".");
  const tokens = Math.floor(Number(budgetTokens));
  const budget = { ...(/^\d+(\.\d+)?$/.test(usd) && Number(usd) > 0 && { usd }), ...(tokens > 0 && Number.isFinite(tokens) && { tokens }) };
  return Object.keys(budget).length ? { budget } : {};
}
