// The agent templates: instructions, tools and prompts, and the search among them.

import templates from "./templates.json";

/** `tools` are patterns as in `RunOptions.tools`. `instructions` come before those of the thread. */
export interface AgentTemplate {
  readonly id: string;
  readonly name: string;
  readonly category: string;
  readonly description: string;
  readonly instructions: string;
  readonly tools: readonly string[];
  readonly prompts: readonly string[];
  readonly maxSteps: number;
}

export const agentTemplates: readonly AgentTemplate[] = templates;

export const categories: readonly string[] = [...new Set(agentTemplates.map(({ category }) => category))];

/** The template with this id; null for none, or if it does not exist any more. */
export function findTemplate(id: string | null): AgentTemplate | null {
  return agentTemplates.find((agent) => agent.id === id) ?? null;
}

/** The templates that contain every word of the query, of one category unless it is null. */
export function searchTemplates(query: string, category: string | null): readonly AgentTemplate[] {
  const words = query.normalize("NFKC").toLowerCase().split(/\s+/u).filter(Boolean);
  return agentTemplates.filter((agent) => {
    const text = [agent.name, agent.category, agent.description, ...agent.tools, ...agent.prompts].join(" ").toLowerCase();
    return (category === null || agent.category === category) && words.every((word) => text.includes(word));
  });
}
