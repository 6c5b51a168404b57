// Which model answers in a chat, and what the page says about models.

import type { AccessKeys, Model, Models } from "@khala/client";
import { formatNumber, formatUsd, joinParts } from "../state/format.ts";
import { m } from "../i18n/messages.ts";
import type { PreferenceOwner } from "./model-list.svelte.ts";

/** What decides about the model, the first that names one: the choice for the chat, the agent, the preferences, the server. */
export interface ModelSources {
  readonly chosen: string | null;
  readonly agent: string | null;
  readonly preferred: string | null;
  readonly list: Models | null;
}

/** The model that answers without a choice for this chat; null until it is known. */
export function automaticModel({ agent, preferred, list }: Omit<ModelSources, "chosen">): string | null {
  return agent ?? (preferred !== null && isOffered(preferred, list) ? preferred : null) ?? list?.default ?? null;
}

/** The model that answers the next message; null until it is known. */
export function effectiveModel(sources: ModelSources): string | null {
  const { chosen, list } = sources;
  return chosen !== null && isOffered(chosen, list) ? chosen : automaticModel(sources);
}

/** Whether a model can be named; also while the list is not known. */
export function isOffered(model: string, list: Models | null): boolean {
  return list === null || list.items.some((item) => item.model === model);
}

/** "$1.25 in, $10 out per million tokens · 400,000 tokens of context"; empty if nothing is known. */
export function modelDetail({ inputUsdPerMillion: input, outputUsdPerMillion: output, contextTokens }: Model): string {
  const price = input !== undefined && output !== undefined ? m.model_price({ input: formatUsd(Number(input)), output: formatUsd(Number(output)) }) : null;
  const context = contextTokens !== undefined && m.model_context({ tokens: formatNumber(contextTokens, { notation: "compact" }) });
  return joinParts([price, context]);
}

/** Whose preferences apply to the messages of a chat: the account's, or those of the guest's key; null for a share link. */
export function preferenceOwner(userId: string | null, keys: AccessKeys): PreferenceOwner | null {
  if (userId !== null) return { id: userId, keys: {} };
  return keys.anonKey === undefined ? null : { id: keys.anonKey, keys: { anonKey: keys.anonKey } };
}
