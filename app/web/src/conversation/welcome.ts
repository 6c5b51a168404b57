// The welcome: the message that the server writes with a new chat.

import type { ChatView, MessageView } from "../state/page-model.ts";

/** The messages to show: once somebody has asked something or made a plan, those after the welcome. */
export function withoutWelcome(chat: Pick<ChatView, "messages" | "thread" | "hasQuestions" | "plans"> | null): readonly MessageView[] {
  const messages = chat?.messages ?? [];
  const [first] = messages;
  const isBegun = chat !== null && (chat.plans.length > 0 || (chat.hasQuestions && messages.length > 1));
  return isBegun && first && isWelcome(first, chat.thread?.createdAt) ? messages.slice(1) : messages;
}

/** Whether the message is as old as its chat, as the welcome is, also after a reset. Those of models, bots and imports came later, or have an author. */
function isWelcome({ head, blocks }: Pick<MessageView, "head" | "blocks">, createdAt: string | undefined): boolean {
  const isPlain = blocks.length === 1 && blocks[0]?.block.type === "text";
  return head.role === "assistant" && head.parentId === undefined && head.runId === undefined && head.authorName === undefined && isPlain && head.createdAt === createdAt;
}

/** Whether it is the welcome of a server without one of its own, which the page says in its own language. */
export function isDefaultWelcome({ head, text }: Pick<MessageView, "head" | "text">): boolean {
  return head.role === "assistant" && head.parentId === undefined && text.startsWith("Hi! Ask me anything. Your conversation is saved");
}
