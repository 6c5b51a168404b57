// What the overview says about webhooks: their problems first.

import { formatCount, formatDuration } from "./format.ts";
import type { Overview } from "./types.ts";

export interface WebhookTile {
  readonly label: string;
  readonly value: string;
  readonly note: string;
  /** The filter of the list that shows these webhooks. */
  readonly state: "failing" | "disabled" | "";
  readonly tone: "bad" | "warn" | "none";
}

export function webhookTile({ waiting, oldestSeconds, failing, disabled }: Overview["webhooks"]): WebhookTile {
  const age = formatDuration(1000 * (oldestSeconds ?? 0));
  const backlog = waiting === 0 ? "No delivery waits" : waiting === 1 ? `1 delivery has waited for ${age}` : `${formatCount(waiting)} deliveries wait, the oldest for ${age}`;
  if (failing > 0) {
    const note = disabled > 0 ? `${backlog} · ${formatCount(disabled)} more disabled by Khala` : backlog;
    return { label: "Failing webhooks", value: formatCount(failing), note, state: "failing", tone: "bad" };
  }
  if (disabled > 0) return { label: "Webhooks disabled by Khala", value: formatCount(disabled), note: backlog, state: "disabled", tone: "warn" };
  return { label: "Webhook deliveries", value: formatCount(waiting), note: waiting > 0 ? `Waiting, the oldest for ${age}` : "None waits", state: "", tone: "none" };
}
