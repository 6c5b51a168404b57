// What an operator can do with a run, and in which of its states.

import type { RunAction, RunItem } from "./types.ts";

interface ActionText {
  readonly verb: string;
  readonly question: string;
  readonly text: string;
  readonly done: string;
  readonly isDangerous: boolean;
}

export const RUN_ACTIONS: Readonly<Record<RunAction, ActionText>> = {
  cancel: {
    verb: "Cancel run",
    question: "Cancel this run?",
    text: "The executor stops the model and keeps what is written. This is what the requester’s own button does.",
    done: "The run is being cancelled.",
    isDangerous: true,
  },
  end: {
    verb: "End run now",
    question: "End this run now?",
    text: "The run ends without waiting for its executor. Text that the executor has not stored yet is lost. Use this if cancelling has no effect.",
    done: "The run has ended.",
    isDangerous: true,
  },
  requeue: {
    verb: "Requeue run",
    question: "Requeue this run?",
    text: "The executor loses its lease. Another executor continues after the stored text.",
    done: "The run is in the queue again.",
    isDangerous: false,
  },
  retry: {
    verb: "Retry run",
    question: "Retry this run?",
    text: "A new run answers the same message for the same requester, with the same options. It is charged to the same budgets.",
    done: "A new run is in the queue.",
    isDangerous: false,
  },
};

/** The actions that the server accepts in the state of the run, the mildest first. */
export function possibleActions(run: RunItem): readonly RunAction[] {
  switch (run.state) {
    case "running":
      return ["requeue", "cancel", "end"];
    case "queued":
    case "blocked":
      return ["cancel", "end"];
    default:
      return run.planId === null ? ["retry"] : [];
  }
}
