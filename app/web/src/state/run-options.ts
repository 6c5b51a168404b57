// The options of the next run, from the person's settings.

import type { RunOptions } from "@khala/client";
import type { Preferences } from "./page-model.ts";

/** `model` is the one that was chosen for the chat, and `folderAgent` the agent of its folder; null for none. */
export function runOptions(preferences: Preferences, model: string | null = null, folderAgent: string | null = null): RunOptions {
  const { autopilot, maxSteps } = preferences;
  const agent = preferences.agent ?? folderAgent;
  return { ...(agent !== null && { agent }), ...(model !== null && { model }), ...(autopilot && { autopilot, maxSteps, ...runBudget(preferences) }) };
}

/** Budgets apply to runs on autopilot only. Anything but a positive number means no budget. */
function runBudget({ budgetUsd, budgetTokens }: Preferences): Pick<RunOptions, "budget"> {
  const usd = budgetUsd.trim().replace(",", ".");
  const tokens = Math.floor(Number(budgetTokens));
  const budget = { ...(/^\d+(\.\d+)?$/.test(usd) && Number(usd) > 0 && { usd }), ...(tokens > 0 && Number.isFinite(tokens) && { tokens }) };
  return Object.keys(budget).length ? { budget } : {};
}
