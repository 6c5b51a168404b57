// Labels of the choice of an agent for an answer.

import type { LikelyAgent, Part, Route } from "@khala/client";

/** The choice among the first parts of a run, or null if the person chose the agent. */
export function routeOf(parts: readonly Part[]): Route | null {
  return parts.find((part) => part.kind === "route")?.data ?? null;
}

/** For example “Routed to reviewer, 82% sure”. */
export function routeLabel({ agent, confidence }: Route): string {
  return agent === "default" ? "No agent was likely enough for this question" : `Routed to ${agent}, ${percent(confidence)} sure`;
}

/** For example “Also possible: tester (10%), writer (6%)”; empty without alternatives. */
export function alternativesLabel(alternatives: readonly LikelyAgent[]): string {
  const named = alternatives.map(({ agent, confidence }) => `${agent} (${percent(confidence)})`);
  return named.length === 0 ? "" : `Also possible: ${named.join(", ")}`;
}

const percent = (confidence: number): string => `${Math.round(100 * confidence)}%`;
