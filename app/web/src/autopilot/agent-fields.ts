// The fields of an agent's form as texts, and the search among agents.

import type { Agent, AgentChanges, NewAgent } from "@khala/client";
import { m } from "../i18n/messages.ts";
import { joinParts } from "../state/format.ts";
import { patternName } from "../tasks/tool-patterns.ts";

export const MAX_NAME_CHARACTERS = 63;
/** As the server has it: `AgentName` in `app/khala/domain/agents.py`. */
export const NAME_PATTERN = "[a-z][a-z0-9\\-]{0,62}";
const RESERVED_NAMES = ["auto", "default"];

/** The fields of the form. `tools` and `examples` are texts with one entry per word and per line. */
export interface AgentFields {
  readonly title: string;
  readonly name: string;
  readonly description: string;
  readonly instructions: string;
  readonly allTools: boolean;
  readonly tools: string;
  readonly model: string;
  readonly examples: string;
}

export const EMPTY_FIELDS: AgentFields = { title: "", name: "", description: "", instructions: "", allTools: true, tools: "", model: "", examples: "" };

/** The fields of an agent that exists. */
export function fieldsOf({ title, name, description, instructions, tools, model, examples }: Agent): AgentFields {
  const allTools = tools.length === 1 && tools[0] === "*";
  return { title, name, description, instructions, allTools, tools: allTools ? "" : tools.join(" "), model: model ?? "", examples: examples.join("\n") };
}

/** The changes of an agent: without a model it calls the server's. */
export function changesOf(fields: AgentFields): Required<Omit<AgentChanges, "budget" | "executor" | "fallbacks">> {
  return {
    title: fields.title.trim(),
    description: fields.description.trim(),
    instructions: fields.instructions.trim(),
    tools: fields.allTools ? ["*"] : splitWords(fields.tools),
    model: fields.model || null,
    examples: fields.examples.split("\n").map((line) => line.trim()).filter(Boolean),
  };
}

/** An agent to create; `origin` is the agent that it is a copy of. */
export function newAgentOf(fields: AgentFields, origin: Agent | null): NewAgent {
  const { model, ...changes } = changesOf(fields);
  const { budget, fallbacks } = origin ?? {};
  return { name: fields.name.trim(), ...changes, ...(model !== null && { model }), ...(fallbacks && { fallbacks }), ...(budget && { budget }) };
}

/** A name from a title, unlike the names in use: "Café Poët" is `cafe-poet`, then `cafe-poet-2`. */
export function nameFrom(title: string, taken: readonly string[]): string {
  const plain = title.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  const words = plain.replace(/[^a-z0-9]+/gu, "-").replace(/^[-\d]+/u, "").slice(0, MAX_NAME_CHARACTERS - 4).replace(/-+$/u, "");
  const base = words || "agent";
  const isFree = (name: string): boolean => !taken.includes(name) && !RESERVED_NAMES.includes(name);
  if (isFree(base)) return base;
  for (let number = 2; ; number++) if (isFree(`${base}-${number}`)) return `${base}-${number}`;
}

/** The agents that contain every word of the query in any of their texts, own ones first. */
export function searchAgents(agents: readonly Agent[], query: string): readonly Agent[] {
  const words = fold(query).split(/\s+/u).filter(Boolean);
  const found = agents.filter(({ title, name, description, tools, examples }) => {
    const text = fold([title, name, description, ...tools, ...examples].join(" "));
    return words.every((word) => text.includes(word));
  });
  return found.toSorted((one, other) => Number(one.owner === undefined) - Number(other.owner === undefined));
}

/** Whether the person may change, share and delete the agent. */
export function isOwn({ owner }: Agent, userId: string | undefined): boolean {
  return owner !== undefined && owner === userId;
}

/** Whether the agent is a program of the server's operator. Nobody can change or copy it here. */
export function isCommand({ name }: Agent): boolean {
  return name.startsWith("command:");
}

/** The tools that an agent names and that are not among these. Patterns ask for what there is, so they miss nothing. */
export function missingTools(tools: readonly string[], available: readonly string[]): readonly string[] {
  return tools.filter((tool) => !tool.includes("*") && !available.includes(tool));
}

/** "All tools", "No tools", "Search in files · Tools that begin with todo_" */
export function toolsLabel(tools: readonly string[]): string {
  if (tools.includes("*")) return m.all_tools();
  return tools.length === 0 ? m.no_tools() : joinParts(tools.map(patternName));
}

function fold(text: string): string {
  return text.normalize("NFKC").toLowerCase();
}

/** The names in `text` that are among `listed`, and the other words of it: names and patterns. */
export function splitTools(text: string, listed: readonly string[]): { chosen: readonly string[]; others: string } {
  const words = splitWords(text);
  return { chosen: words.filter((word) => listed.includes(word)), others: words.filter((word) => !listed.includes(word)).join(" ") };
}

function splitWords(text: string): string[] {
  return [...new Set(text.split(/[\s,]+/u).filter(Boolean))];
}
