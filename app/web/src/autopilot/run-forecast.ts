// The forecast of a run before it starts, and the person's answer to it.

import type { Estimate } from "../agent/estimate.ts";

/** `confidence` is from 0 to 1. */
export type Ranked = { readonly id: string; readonly confidence: number };
/** `why` is the server's reason for its choice. */
export type RunForecast = { readonly agents: readonly Ranked[]; readonly estimate: Estimate; readonly why?: string };

/** "start" on autopilot as this agent, or none; "send" without autopilot; "cancel". */
export type PreviewAnswer = { kind: "start"; agent: string | null } | { kind: "send" } | { kind: "cancel" };
