// The settings of a plan as they are typed, and the names of its exports.

import type { PlanBudget } from "@khala/client";

export type BudgetText = { usd: string; tokens: string; minutes: string };

export function budgetText({ usd, tokens, seconds }: PlanBudget): BudgetText {
  return { usd: usd ?? "", tokens: String(tokens ?? ""), minutes: seconds === undefined ? "" : String(seconds / 60) };
}

/** Anything but a positive number means no limit. */
export function budgetFrom({ usd, tokens, minutes }: BudgetText): PlanBudget {
  const [money, count, time] = [Number(usd), Math.floor(Number(tokens)), 60 * Number(minutes)];
  return { ...(money > 0 && { usd: String(money) }), ...(count > 0 && { tokens: count }), ...(time > 0 && { seconds: time }) };
}

/** "build-the-shop.md", "build-the-shop.prd.json" */
export function exportName(title: string, format: "markdown" | "prd"): string {
  const name = title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60);
  return `${name || "plan"}${format === "markdown" ? ".md" : ".prd.json"}`;
}

/** Steps with the titles of these lines, in order; list marks and numbers before them are left out. */
export function stepsFromLines(text: string): { id: string; title: string }[] {
  const titles = text.split("\n").map((line) => line.replace(/^\s*(?:[-*+]|\d+[.)])\s+/, "").trim()).filter(Boolean);
  return titles.map((title, at) => ({ id: `step-${at + 1}`, title }));
}
