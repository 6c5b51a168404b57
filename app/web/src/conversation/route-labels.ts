// Labels of the choice of an agent for an answer.

import type { LikelyAgent, Part, Route } from "@khala/client";
import { m } from "../i18n/messages.ts";
import { formatPercent, formatUnits } from "../state/format.ts";

/** The choice among the first parts of a run, or null if the person chose the agent. */
export function routeOf(parts: readonly Part[]): Route | null {
  return parts.find((part) => part.kind === "route")?.data ?? null;
}

/** For example “Chose reviewer, 82% match”. */
export function routeLabel({ agent, confidence }: Route): string {
  return agent === "default" ? m.no_agent_was_likely_enough_for_this_question() : m.routed_to_agent_confidence_sure({ agent, confidence: percent(confidence) });
}

/** For example “Alternatives: tester (10%), writer (6%)”; empty without alternatives. */
export function alternativesLabel(alternatives: readonly LikelyAgent[]): string {
  const named = alternatives.map(({ agent, confidence }) => m.agent_with_share({ agent, share: percent(confidence) }));
  return named.length === 0 ? "" : m.also_possible({ agents: formatUnits(named) });
}

const percent = formatPercent;
