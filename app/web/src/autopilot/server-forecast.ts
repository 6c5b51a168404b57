// The server's preview of a run, and how it is combined with the forecast of this browser.

import type { Estimate } from "../agent/estimate.ts";
import { isRequestError, request } from "@khala/client";
import type { AccessKeys, RoutePreview, RouteRequest } from "@khala/client";
import type { RunForecast } from "./run-forecast.ts";

/** The server's preview, or null if the server refuses it, is not reached, or does not answer in time. */
export async function askServer(body: RouteRequest, keys: AccessKeys, timeoutMs: number): Promise<RoutePreview | null> {
  const signal = AbortSignal.timeout(timeoutMs);
  try {
    return await request<RoutePreview>("POST", "/api/route", { body, keys, signal });
  } catch (error) {
    if (!signal.aborted && !isRequestError(error)) throw error;
    console.info("khala", "The server has no preview of this run.", error);
    return null;
  }
}

/** The agents of the server before the others if it answered, and its estimate unless this browser has seen enough similar runs itself. */
export function combine(local: RunForecast, preview: RoutePreview | null): RunForecast {
  if (preview === null) return local;
  const { agent, confidence, abstained, alternatives, why } = preview;
  const chosen = abstained ? [] : [{ id: agent, confidence }];
  const others = alternatives.map((other) => ({ id: other.agent, confidence: other.confidence }));
  const named = [...chosen, ...others];
  // Confidences of the two routers are not comparable.
  const rest = local.agents.filter(({ id }) => !named.some((one) => one.id === id)).map(({ id }) => ({ id }));
  return { agents: [...named, ...rest], suggested: abstained ? null : agent, estimate: combineEstimates(local.estimate, preview), why };
}

/** Tokens stay those of this browser, because the server estimates none. */
function combineEstimates(local: Estimate, { estimate: { steps, seconds, usd, of } }: RoutePreview): Estimate {
  if (local.basis === "history" || of === 0) return local;
  return { ...local, steps: steps ?? local.steps, seconds: seconds ?? local.seconds, ...(usd !== undefined && { costUsd: usd }), basis: "history", runs: of };
}
