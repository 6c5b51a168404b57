// The templates of agents: what each is told, which tools it has, and how one finds it.

import templates from "./templates.json";

/** `tools` are patterns as in `RunOptions.tools`; `instructions` come before the thread's own. */
export interface Agent {
  readonly id: string;
  readonly name: string;
  readonly category: string;
  readonly description: string;
  readonly instructions: string;
  readonly tools: readonly string[];
  readonly prompts: readonly string[];
  readonly maxSteps: number;
}

export const agents: readonly Agent[] = templates;

export const categories: readonly string[] = [...new Set(agents.map(({ category }) => category))];

/** The template with this id, or null for none, or one that is not there any more. */
export function agentOf(id: string | null): Agent | null {
  return agents.find((agent) => agent.id === id) ?? null;
}

/** Those in which every word of the query is found, of one category unless it is null. */
export function matching(query: string, category: string | null): readonly Agent[] {
  const words = query.normalize("NFKC").toLowerCase().split(/\s+/u).filter(Boolean);
  return agents.filter((agent) => {
    const text = [agent.name, agent.category, agent.description, ...agent.tools, ...agent.prompts].join(" ").toLowerCase();
    return (category === null || agent.category === category) && words.every((word) => text.includes(word));
  });
}
