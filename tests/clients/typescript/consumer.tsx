// A program that uses the types of both packages. It is compiled, not run.
import { ApiError, Khala, fromSnapshot, textOf } from "@khala/client";
import type { RunResult, Store, OutboxEntry, ThreadMessage, ThreadView } from "@khala/client";
import { KhalaChatTransport } from "@khala/client/ai-sdk";
import { KhalaProvider, usePresence, useRun, useThread, useThreads } from "@khala/react";
import type { ChatTransport, UIMessage } from "ai";
import { createElement } from "react";
import type { ReactNode } from "react";

declare const storage: Store<OutboxEntry>;
const khala = new Khala({ server: new URL("https://khala.example.com"), credentials: { token: async (refused) => refused ?? "token" }, storage });

export async function ask(): Promise<RunResult> {
  const thread = await khala.threads.create({ title: "Typed" });
  const run = await thread.send("Hello", { options: { autopilot: true, budget: { usd: "0.5" } } });
  for await (const piece of run.text()) piece.toUpperCase();
  try {
    return await run.result();
  } catch (error) {
    if (error instanceof ApiError && error.code === "rate_limited") throw new Error(`Again in ${error.retryAfter ?? 0} s`, { cause: error });
    throw error;
  }
}

export const transport: ChatTransport<UIMessage> = new KhalaChatTransport({ server: "https://khala.example.com", options: () => ({ model: "demo" }) });
export const views = async (id: string): Promise<ThreadView> => khala.thread(id, { initial: fromSnapshot(await khala.thread(id).read()) }).get();

export function Chat({ id }: { id: string }): ReactNode {
  const { messages, send, status } = useThread(id);
  const { text, cancel } = useRun(id);
  const { participants } = usePresence(id, { typing: true });
  const { items } = useThreads();
  const line = (message: ThreadMessage): string => textOf(message) + (message.delivery?.phase ?? "");
  const onClick = (): void => void (status === "live" ? send("Hello") : cancel());
  return createElement(KhalaProvider, { client: khala }, createElement("button", { onClick }, ...messages.map(line), text, participants.length, items.length));
}

// @ts-expect-error A message is a text.
void khala.thread("id").send(1);
// @ts-expect-error There is no such option.
void khala.thread("id").send("Hello", { options: { autopilto: true } });
