// What is wrong with a run, and what an operator can do about it.

import { humanize } from "./format.ts";
import type { ConsoleRunHistory } from "./types.ts";

export interface RunProblem {
  readonly tone: "bad" | "warn";
  readonly title: string;
  readonly text: string;
}

const RETRY_LATER = "Retry the run later.";
const CHECK_PROVIDER = "Check the status page of the provider, then retry the run.";

/** By the code of a run's error: docs/protocol.md lists them. */
const ADVICE = new Map(Object.entries({
  rate_limited: `The provider limits the rate of requests. ${RETRY_LATER} If it happens often, ask the provider for a higher limit.`,
  overloaded: `The provider is overloaded. ${RETRY_LATER}`,
  unavailable: `The provider is unavailable. ${CHECK_PROVIDER}`,
  connection_lost: `The connection to the provider broke. ${CHECK_PROVIDER}`,
  timeout: `The provider did not answer in time. ${CHECK_PROVIDER}`,
  no_response: `The model gave no answer. ${CHECK_PROVIDER}`,
  context_exceeded: "The conversation is longer than the context of the model. Another model with a longer context can answer it.",
  option_refused: "The provider refused an option of the request. Check the options of the model in the configuration.",
  refused: "The provider refused the request. Check its key and the configuration of the model.",
  interrupted: "The executor stopped before the run ended. Check the logs of the executor, then retry the run.",
  budget_exhausted: "A budget is used up. Raise the limit of the account or of the server, then retry the run.",
  agent_not_found: "No agent of this name is configured. Check the configuration of the agents.",
  no_worker: "No worker claimed the run in time. Start a worker for this agent, then retry the run.",
  failed: "The command of the agent failed. Check its log.",
  agent_failed: "The agent failed. Check its log.",
  internal: "An error in Khala itself. Search the logs of the executor for the id of this run.",
}));
const UNKNOWN_ADVICE = "The timeline shows the step that failed.";

/** Undefined if nothing is wrong. `now` is in ms since the epoch. */
export function problemOf({ run, timeline }: ConsoleRunHistory, now: number): RunProblem | undefined {
  if (run.state === "error") {
    const code = timeline.findLast(({ kind }) => kind === "error")?.code ?? "";
    return { tone: "bad", title: code === "" ? "The run failed" : `The run failed: ${humanize(code).toLowerCase()}`, text: ADVICE.get(code) ?? UNKNOWN_ADVICE };
  }
  if (run.state === "blocked") {
    const tool = timeline.find(({ kind, outcome }) => kind === "approval" && outcome === "pending")?.tool;
    return tool ? { tone: "warn", title: `The call of ${tool} waits for approval`, text: "An editor of the thread can approve or decline it. You can cancel the run." } : undefined;
  }
  if (run.state === "running" && run.leaseExpiresAt !== null && Date.parse(run.leaseExpiresAt) < now) {
    return { tone: "warn", title: "The lease has expired", text: "The executor no longer responds. Another one takes over the run. If none does, check the executors." };
  }
  return undefined;
}
