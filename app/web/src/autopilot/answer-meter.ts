// What the text that is being written will have cost: counted in the agent's worker, by the price list.

import { count, prices } from "../agent/client.ts";
import { costOf, priceOf } from "../agent/cost.ts";

/** `costUsd` is a decimal string, null where the price is not known. */
export type AnswerMeasurement = { readonly model: string; readonly tokens: number; readonly exact: boolean; readonly costUsd: string | null };

/** Measure the text of an answer so far; `model` is the server's default unless it is given. */
export async function measureAnswer(id: string, text: string, chosen: string | undefined): Promise<AnswerMeasurement> {
  const list = await prices();
  const model = chosen ?? list.default;
  const { tokens, exact } = await count(id, text, model);
  const price = priceOf(list, model);
  return { model, tokens, exact, costUsd: price && costOf(price, { inputTokens: 0, outputTokens: tokens }) };
}
