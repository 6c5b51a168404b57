// The templates of agents: what each is told, which tools it has, and how one finds it.

import templates from "./templates.json";

/** `tools` are patterns as in `RunOptions.tools`; `instructions` come before the thread's own. */
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

/** The template with this id, or null for none, or one that is not there any more. */
export function findTemplate(id: string | null): AgentTemplate | null {
  return agentTemplates.find((agent) => agent.id === id) ?? null;
}

/** Those in which every word of the query is found, of one category unless it is null. */
export function searchTemplates(query: string, category: string | null): readonly AgentTemplate[] {
  const words = query.normalize("NFKC").toLowerCase().split(/\s+/u).filter(Boolean);
  return agentTemplates.filter((agent) => {
    const text = [agent.name, agent.category, agent.description, ...agent.tools, ...agent.prompts].join(" ").toLowerCase();
    return (category === null || agent.category === category) && words.every((word) => text.includes(word));
  });
}
