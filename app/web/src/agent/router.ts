// Chooses the agent for a task by the words, and parts of words, that its description shares with the task.

import { cosine, embed } from "./embed.ts";
import { segmentsOf } from "./word-segments.ts";

/** The fields of an agent that are considered. `prompts` are examples of its tasks. */
export type RoutableAgent = {
  readonly id: string;
  readonly name: string;
  readonly description: string;
  readonly instructions: string;
  readonly tools: readonly string[];
  readonly prompts: readonly string[];
};

/** `confidence` from 0 to 1 is the probability that the person means this agent. */
export type RankedAgent = { id: string; confidence: number };

const MAX_INSTRUCTIONS_CHARACTERS = 4_000;
const MIN_KEYWORD_CHARACTERS = 3;
/** Words with the same beginning of this length count as forms of one word: `test` and `tests`, `summary` and `summarise`. */
const STEM_CHARACTERS = 5;

/** The features of an agent, each from 0 to 1. */
export type Features = { about: number; instructions: number; prompts: number; keywords: number };

// By logistic regression (L2 0.0008, no negative weight) on the tasks at even indices of `routing-examples.ts` and the built-in agents.
const WEIGHTS: Features = { about: 4.8, instructions: 1.1, prompts: 5.2, keywords: 5.5 };
const BIAS = -5.4;

/** The agents, most likely first. Without anything in common all are about equally unlikely. */
export function route(task: string, agents: readonly RoutableAgent[]): RankedAgent[] {
  return featuresOf(task, agents)
    .map((features, index) => ({ id: agents[index]?.id ?? "", confidence: confidenceOf(features) }))
    .sort((a, b) => b.confidence - a.confidence);
}

/** The probability that the agent is meant. It increases with each feature. */
export function confidenceOf({ about, instructions, prompts, keywords }: Features): number {
  const score = WEIGHTS.about * about + WEIGHTS.instructions * instructions + WEIGHTS.prompts * prompts + WEIGHTS.keywords * keywords;
  return 1 / (1 + Math.exp(-score - BIAS));
}

function featuresOf(task: string, agents: readonly RoutableAgent[]): Features[] {
  const vector = embed(task);
  const like = (text: string): number => Math.max(0, cosine(vector, embed(text)));
  const overlaps = overlapsOf(task, agents);
  return agents.map((agent, index) => ({
    about: like(`${agent.name} ${agent.description}`),
    instructions: like(agent.instructions.slice(0, MAX_INSTRUCTIONS_CHARACTERS)),
    prompts: Math.max(0, ...agent.prompts.map(like)),
    keywords: overlaps[index] ?? 0,
  }));
}

/** The share of the task's keywords that each agent uses, weighted towards keywords that few agents use. */
function overlapsOf(task: string, agents: readonly RoutableAgent[]): number[] {
  const used = agents.map(
    ({ name, description, instructions, tools, prompts }) =>
      keywordsOf([name, description, instructions.slice(0, MAX_INSTRUCTIONS_CHARACTERS), ...tools, ...prompts].join(" ")),
  );
  let all = 0;
  const shares = agents.map(() => 0);
  for (const keyword of keywordsOf(task)) {
    const users = used.filter((keywords) => keywords.has(keyword)).length;
    // Words that no agent uses count as well: a task made mostly of those fits none.
    const weight = Math.log(1 + agents.length / (1 + users));
    all += weight;
    used.forEach((keywords, index) => {
      if (keywords.has(keyword)) shares[index] = (shares[index] ?? 0) + weight;
    });
  }
  return shares.map((share) => (all === 0 ? 0 : share / all));
}

function keywordsOf(text: string): Set<string> {
  return new Set(segmentsOf(text).filter((word) => word.length >= MIN_KEYWORD_CHARACTERS).map((word) => word.slice(0, STEM_CHARACTERS)));
}
