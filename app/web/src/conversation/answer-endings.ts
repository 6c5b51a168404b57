// What a person can do next with an answer that ended early.

import type { MessageView } from "../state/page-model.ts";

type NextStep = "retry" | "continue" | "raise";

/** `raise`: the answer reached the budget of its run. Null: nothing that the page offers would help. */
export function nextStepOf({ displayStatus, finish, error }: Pick<MessageView, "displayStatus" | "finish" | "error">): NextStep | null {
  if (displayStatus === "stopped" || displayStatus === "failed") return "retry";
  switch (finish?.reason) {
    case "length":
    case "max_steps":
      return "continue";
    case "no_progress":
      return "retry";
    case "budget":
      // The budgets of chats, accounts and servers end at a time. That of a run does not, and the next run has its own.
      return error?.retryAt === undefined ? "raise" : "retry";
    default:
      return null;
  }
}
