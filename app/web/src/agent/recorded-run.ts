// What an answer took, as the agent worker remembers it.

import type { Message } from "../khala/frames.ts";
import type { RecordedRun } from "./run-history.ts";

/** What an answer took, by a template's id or null; null unless the model had finished and it says how long it took. */
export function recordedRunOf({ id, runId, content = [], finish, updatedAt }: Message, agent: string | null): RecordedRun | null {
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
