// The server's preview of a run, and how it is combined with the forecast of this browser: index, then server, then cache.

import type { Estimate } from "../agent/estimate.ts";
import type { RoutePreview } from "../khala/frames.ts";
import type { RunForecast } from "./run-forecast.ts";

export type Call = (method: string, path: string, body: unknown) => Promise<RoutePreview>;

/** The server's preview, or null if it does not arrive in time: without network, or before the chat is on the server. */
export async function askServer(call: Call, text: string, threadId: string, timeoutMs: number): Promise<RoutePreview | null> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<null>((resolve) => (timer = setTimeout(() => resolve(null), timeoutMs)));
  const asked = call("POST", "/api/route", { text, threadId }).catch((error: unknown) => {
    console.info("The server has no preview of this run.", error);
    return null;
  });
  return Promise.race([asked, late]).finally(() => clearTimeout(timer));
}

/** The agents of the server if it answered, and its estimate unless this browser has seen enough similar runs itself. */
export function combine(local: RunForecast, preview: RoutePreview | null): RunForecast {
  if (preview === null) return local;
  const { agent, confidence, abstained, alternatives, why } = preview;
  const chosen = abstained ? [] : [{ id: agent, confidence }];
  const others = alternatives.map((other) => ({ id: other.agent, confidence: other.confidence }));
  return { agents: [...chosen, ...others], estimate: combinedEstimate(local.estimate, preview), why };
}

/** The server does not know how many tokens the browser expects. */
function combinedEstimate(local: Estimate, { estimate }: RoutePreview): Estimate {
  if (local.basis === "history" || estimate.of === 0) return local;
  const { costUsd: rough, ...rest } = local;
  const costUsd = estimate.usd ?? rough;
  return { ...rest, steps: estimate.steps ?? local.steps, seconds: estimate.seconds ?? local.seconds, basis: "history", runs: estimate.of, ...(costUsd !== undefined && { costUsd }) };
}
