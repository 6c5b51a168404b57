// The record of a run, from its answer, as the agent worker stores it.

import type { Message } from "@khala/client";
import type { RecordedRun } from "./run-history.ts";

/** The record of an answer, written by `agent` or none; null unless the model has finished and its duration is known. */
export function recordedRunOf({ id, runId, content = [], finish, updatedAt }: Message, agent: string | null): RecordedRun | null {
  if (finish?.reason !== "stop" || finish.totalMs === undefined) return null;
  const calls = content.filter((block) => block.type === "tool");
  return {
    id: runId ?? id,
    agent,
    model: finish.provider && finish.model ? `${finish.provider}:${finish.model}` : null,
    tools: [...new Set(calls.map(({ tool }) => tool))],
    // The last step is the answer itself.
    steps: 1 + new Set(calls.map(({ step }) => step)).size,
    ms: finish.totalMs,
    inputTokens: finish.usage.inputTokens,
    outputTokens: finish.usage.outputTokens,
    ...(finish.costUsd !== undefined && { costUsd: finish.costUsd }),
    at: Date.parse(updatedAt),
  };
}
