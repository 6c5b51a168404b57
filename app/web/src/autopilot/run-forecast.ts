// The forecast of a run before it starts, and the person's answer to it.

import type { Estimate } from "../agent/estimate.ts";

/** `confidence` is from 0 to 1, absent if it is unknown. */
export type Ranked = { readonly id: string; readonly confidence?: number };
/**
 * `agents` are the likeliest first, and `suggested` is the one to choose, null if none is likely enough. `why` is the server's
 * reason; it is absent where this browser chose.
 */
export type RunForecast = { readonly agents: readonly Ranked[]; readonly suggested: string | null; readonly estimate: Estimate; readonly why?: string };

/** "start" on autopilot as this agent, or none; "send" without autopilot; "cancel". */
export type PreviewAnswer = { kind: "start"; agent: string | null } | { kind: "send" } | { kind: "cancel" };
