// Keeps what can be searched in step with what may be read: chats that were open are in it, those that are gone are not.

import { untrack } from "svelte";

import type { IndexedMessage } from "../agent/client.ts";
import { page } from "../state/page.svelte.ts";
import type { ChatView, MessageView } from "../state/shape.ts";

/** How long a chat rests before it is indexed, in ms: whoever writes or reads comes first. */
const REST_MS = 1500;
/** The highest revision of a thread in which nothing has happened yet. */
const FRESH = 2;
type Client = typeof import("../agent/client.ts");

/** Index the open chat whenever it rests. Called while a component is made, and ends with it. */
export function keepSearchable(): void {
  let reader = untrack(() => page.account.user?.id ?? null);

  $effect(() => {
    const { chat } = page;
    if (!isAtRest(chat)) return;
    const { id, thread, title, asked } = chat;
    if (thread === null || (!asked && thread.revision <= FRESH)) return;
    const { revision } = thread;
    const rested = (): void => void tell((client) => (asked ? client.index({ id, title, revision }, untrack(() => chat.messages.flatMap(indexed))) : client.forget(id)));
    const timer = setTimeout(rested, REST_MS);
    return () => clearTimeout(timer);
  });

  $effect(() => {
    if (page.chat?.refusal && page.chat.refusal.code !== "protocol") forgetWords(page.chat.id);
  });

  // Who has signed out leaves nothing to be found by whoever comes next.
  $effect(() => {
    const now = page.account.user?.id ?? null;
    if (reader !== null && now !== reader) void tell((client) => client.clear());
    reader = now;
  });
}

/** The chat was removed: nobody shall find its words here any more. */
export function forgetWords(threadId: string): void {
  void tell((client) => client.forget(threadId));
}

function isAtRest(chat: ChatView | null): chat is ChatView {
  return chat !== null && !chat.loading && !chat.stale && !chat.busy && chat.refusal === null;
}

/** What there is to search in a message; what is not on the server yet, or still being written, can't be found. */
function indexed({ id, head, text, standing }: MessageView): IndexedMessage[] {
  const isStored = standing === "sent" || standing === "done" || standing === "stopped";
  return isStored && text.trim() !== "" ? [{ id, text, at: Date.parse(head.createdAt) }] : [];
}

async function tell(say: (client: Client) => Promise<unknown>): Promise<void> {
  try {
    await say(await import("../agent/client.ts"));
  } catch (error) {
    console.info("The search knows less than it could.", error);
  }
}
