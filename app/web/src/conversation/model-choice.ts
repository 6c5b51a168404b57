// Which model answers in a chat, and whose preferences apply.

import type { AccessKeys, Models } from "@khala/client";
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

/** Whose preferences apply to the messages of a chat: the account's, or those of the guest's key; null for a share link. */
export function preferenceOwner(userId: string | null, keys: AccessKeys): PreferenceOwner | null {
  if (userId !== null) return { id: userId, keys: {} };
  return keys.anonKey === undefined ? null : { id: keys.anonKey, keys: { anonKey: keys.anonKey } };
}
