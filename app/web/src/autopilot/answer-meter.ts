// Measures an active answer: its tokens, counted by the agent worker, and their cost by the price list.

import { count, prices } from "../agent/client.ts";
import { costOf, priceOf } from "../agent/cost.ts";

/** `costUsd` is a decimal string, null if the price is unknown. */
export type AnswerMeasurement = { readonly model: string; readonly tokens: number; readonly exact: boolean; readonly costUsd: string | null };

/** Measure the text of an answer so far. `chosen` defaults to the server's default model. */
export async function measureAnswer(id: string, text: string, chosen: string | undefined): Promise<AnswerMeasurement> {
  const list = await prices();
  const model = chosen ?? list.default;
  const { tokens, exact } = await count(id, text, model);
  const price = priceOf(list, model);
  return { model, tokens, exact, costUsd: price && costOf(price, { inputTokens: 0, outputTokens: tokens }) };
}
