// Counts growing texts in the worker: posts only the new part, and the whole text if the worker does not know the previous part.

import type { IncrementalCount } from "./token-counts.ts";
import type { TokenCount } from "./token-counter.ts";

type Ask = (asked: { runId: string; from: number; text: string; model: string }) => Promise<IncrementalCount>;

/** Beyond this number of runs the oldest is counted from the beginning again, which only costs time. */
const MAX_TRACKED_RUNS = 64;

/** Calls may overlap; the worker handles them in order. */
export function createCountClient(ask: Ask): (runId: string, text: string, model: string) => Promise<TokenCount> {
  const sent = new Map<string, { length: number; model: string }>();
  return async (runId, text, model) => {
    const before = sent.get(runId);
    const from = before?.model === model && before.length <= text.length ? before.length : 0;
    sent.delete(runId);
    sent.set(runId, { length: text.length, model });
    const [oldest] = sent.keys();
    if (sent.size > MAX_TRACKED_RUNS && oldest !== undefined) sent.delete(oldest);
    const counted = (await ask({ runId, from, text: text.slice(from), model })) ?? (await ask({ runId, from: 0, text, model }));
    if (counted === null) throw new Error("A count from the beginning has nothing before it.");
    return counted;
  };
}
