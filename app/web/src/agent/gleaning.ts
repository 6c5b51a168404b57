// What of a chat goes to the agent worker: texts that can be searched, and what an answer took.

import type { Message, Thread } from "../khala/frames.ts";
import type { Run } from "./patterns.ts";
import type { IndexedMessage, IndexedThread } from "./search/archive.ts";

/** The arguments of `index`: the thread, and those of the messages that won't change any more. */
export function indexable({ id, title, revision }: Thread, messages: readonly Message[]): [IndexedThread, IndexedMessage[]] {
  const settled = messages.filter(({ role, finish }) => role === "user" || finish !== undefined);
  return [{ id, title: title ?? "", revision }, settled.map((message) => ({ id: message.id, text: textOf(message), at: Date.parse(message.createdAt) }))];
}

/** What an answer took, by a template's id or null; null unless the model had finished and it says how long it took. */
export function runOf({ id, runId, content = [], finish, updatedAt }: Message, agent: string | null): Run | null {
  if (finish?.reason !== "stop" || finish.totalMs === undefined) return null;
  const calls = content.filter((block) => block.type === "tool");
  return {
    id: runId ?? id,
    agent,
    model: finish.provider && finish.model ? `${finish.provider}:${finish.model}` : null,
    tools: [...new Set(calls.map(({ tool }) => tool))],
    // The last one is the answer itself.
    steps: 1 + new Set(calls.map(({ step }) => step)).size,
    ms: finish.totalMs,
    inputTokens: finish.usage.inputTokens,
    outputTokens: finish.usage.outputTokens,
    ...(finish.costUsd !== undefined && { costUsd: finish.costUsd }),
    at: Date.parse(updatedAt),
  };
}

/** What was written, and not what tools said. */
export function textOf({ content = [] }: Message): string {
  return content.flatMap((block) => (block.type === "text" ? [block.text] : [])).join("\n");
}
