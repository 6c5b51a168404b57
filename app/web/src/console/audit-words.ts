// What the actions of the audit log are called.

import { humanize } from "./format.ts";

const ACTIONS: Readonly<Record<string, string>> = {
  console_run_canceled: "Cancelled a run",
  console_run_ended: "Ended a run",
  console_run_requeued: "Requeued a run",
  console_run_retried: "Retried a run",
  console_thread_opened: "Opened a thread",
  console_thread_forked: "Forked a thread",
  console_budget_set: "Changed a budget",
  console_account_blocked: "Blocked an account",
  console_account_unblocked: "Unblocked an account",
  console_webhook_replayed: "Replayed a webhook",
  signed_in: "Signed in",
  sign_in_failed: "Failed to sign in",
  registered: "Registered",
  blocked: "Was blocked",
  unblocked: "Was unblocked",
  password_reset: "Password was reset by the operator",
  admin_given: "Became administrator",
  admin_taken: "Is no administrator any more",
};

export function wordsOfAudit(action: string): string {
  return ACTIONS[action] ?? humanize(action);
}
