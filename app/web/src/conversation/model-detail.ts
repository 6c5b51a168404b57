// What the menu of models says about each.

import type { Model } from "@khala/client";
import { formatNumber, formatUsd, joinParts } from "../state/format.ts";
import { m } from "../i18n/messages.ts";

/** "$1.25 in, $10 out per million tokens · 400K tokens of context"; empty if nothing is known. */
export function modelDetail({ inputUsdPerMillion: input, outputUsdPerMillion: output, contextTokens }: Model): string {
  const price = input !== undefined && output !== undefined ? m.model_price({ input: formatUsd(Number(input)), output: formatUsd(Number(output)) }) : null;
  return joinParts([price, contextTokens !== undefined && m.model_context({ tokens: compact(contextTokens) })]);
}

/** "400K", "1M", where British English has small letters. */
function compact(tokens: number): string {
  return formatNumber(tokens, { notation: "compact" }).replace(/(?<=\d)[km]$/, (unit) => unit.toUpperCase());
}
