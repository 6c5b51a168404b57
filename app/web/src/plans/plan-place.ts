// Where a plan stands among the messages of its chat.

import type { MessageView } from "../state/page-model.ts";

type Placed = Pick<MessageView, "head">;

/** The index of the message before which a plan of this time stands, after all of them at the end; null if it is among earlier messages, which are not drawn. */
export function planIndex(drawn: readonly Placed[], createdAt: string, hasEarlier: boolean): number | null {
  const time = Date.parse(createdAt);
  const at = drawn.findIndex(({ head }) => Date.parse(head.createdAt) > time);
  if (at === -1) return drawn.length;
  return at === 0 && hasEarlier ? null : at;
}

/** Whether an answer made the plan of this time, by its tool. */
export function isPlannedByAnswer(messages: readonly Pick<MessageView, "head" | "blocks">[], createdAt: string): boolean {
  const time = Date.parse(createdAt);
  const answer = messages.findLast(({ head }) => head.role === "assistant" && Date.parse(head.createdAt) <= time);
  return answer?.blocks.some(({ block }) => block.type === "tool" && block.tool === "plan_create") === true;
}
