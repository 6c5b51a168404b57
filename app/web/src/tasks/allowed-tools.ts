// The tools whose calls need no approval in a chat, by the rules of its thread.

import type { Items, Rule } from "@khala/client";
import type { ChatView } from "../state/page-model.ts";

type Caller = Pick<ChatView, "call" | "id">;

const path = ({ id }: Caller) => `/api/threads/${id}/tool-rules`;

/** The rules of the thread that allow something, without those that a later rule repeats. Errors as those of `request`. */
export async function readAllowed(chat: Caller): Promise<readonly string[]> {
  return allowedPatterns((await chat.call<Items<Rule>>("GET", path(chat))).items);
}

/** The patterns whose last rule is `allow`, in order. */
export function allowedPatterns(rules: readonly Rule[]): readonly string[] {
  const last = new Map(rules.map(({ pattern, action }) => [pattern, action]));
  return [...last].flatMap(([pattern, action]) => (action === "allow" ? [pattern] : []));
}

/** Remove all rules that allow this pattern; the others stay as the server has them now. */
export async function revokeAllowed(chat: Caller, pattern: string): Promise<void> {
  const { items } = await chat.call<Items<Rule>>("GET", path(chat));
  const left = items.filter((rule) => rule.pattern !== pattern || rule.action !== "allow");
  await chat.call("PUT", path(chat), { items: left });
}
