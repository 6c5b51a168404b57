// How states look: which are good, bad, need somebody, or go on.

import type { RunState } from "./types.ts";

/** What the states of runs are called. */
export const RUN_STATE_LABELS: Readonly<Record<RunState, string>> = {
  queued: "Queued",
  running: "Running",
  blocked: "Blocked",
  final: "Done",
  error: "Failed",
  canceled: "Cancelled",
};

export type Tone = "good" | "bad" | "warn" | "active" | "none";

const TONES: Readonly<Record<Exclude<Tone, "none">, readonly string[]>> = {
  good: ["final", "delivered", "approved", "done", "ok", "enabled"],
  bad: ["error", "failed", "dead", "parked", "lost", "interrupted", "expired", "disabled", "denied", "lapsed", "failing"],
  warn: ["blocked", "pending", "waiting", "paused"],
  active: ["running", "active"],
};

/** The tone of a state; `none` for a neutral one. */
export function toneOf(state: string): Tone {
  const found = Object.entries(TONES).find(([, states]) => states.includes(state));
  return (found?.[0] as Tone | undefined) ?? "none";
}
