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
  if (failing > 0) {
    const deliveries = `${formatCount(waiting)} ${waiting === 1 ? "delivery waits" : "deliveries wait"}`;
    return { label: "Failing webhooks", value: formatCount(failing), note: disabled > 0 ? `${deliveries} · ${formatCount(disabled)} more disabled` : deliveries, state: "failing", tone: "bad" };
  }
  if (disabled > 0) return { label: "Disabled webhooks", value: formatCount(disabled), note: disabled === 1 ? "Because it failed" : "Because they failed", state: "disabled", tone: "warn" };
  const note = waiting > 0 ? `Waiting, the oldest for ${formatDuration(1000 * (oldestSeconds ?? 0))}` : "None waits";
  return { label: "Webhook deliveries", value: formatCount(waiting), note, state: "", tone: "none" };
}
