// Keeps what can be searched in step with what may be read: chats that were open are in it, those that are gone are not.

import { untrack } from "svelte";

import type { IndexedMessage } from "../agent/client.ts";
import { recordedRunOf } from "../agent/recorded-run.ts";
import { page } from "../state/page.svelte.ts";
import { BrowserStorage } from "../state/browser-storage.ts";
import type { ChatView, MessageView } from "../state/page-model.ts";

/** How long a chat rests before it is indexed, in ms: whoever writes or reads comes first. */
const REST_MS = 1500;
/** The highest revision of a thread in which nothing has happened yet. */
const FRESH = 2;
/** Whose words can be found here, in this browser's storage. */
const READER = "khala.reader";
const NOBODY = "nobody";
const noted = new BrowserStorage(() => localStorage);

type Client = typeof import("../agent/client.ts");

/** Index the open chat whenever it rests. Called while a component is made, and ends with it. */
export function keepSearchable(): void {
  $effect(() => {
    const { chat } = page;
    if (!isAtRest(chat)) return;
    const { id, thread, title, hasQuestions: asked } = chat;
    if (thread === null || (!asked && thread.revision <= FRESH)) return;
    if (!asked) return forgetWords(id); // it was emptied
    const { revision } = thread;
    const rested = (): void => void tell((client) => untrack(() => client.index({ id, title, revision }, chat.messages.flatMap(indexed), { ids: chat.ids, isWhole: !chat.hasMore })));
    const timer = setTimeout(rested, REST_MS);
    return () => clearTimeout(timer);
  });

  learn();

  $effect(() => {
    if (page.chat?.refusal && page.chat.refusal.code !== "protocol") forgetWords(page.chat.id);
  });

  // Who has signed out leaves nothing to be found by whoever comes next, also if that page was gone before all was cleared.
  $effect(() => {
    const now = page.account.user?.id ?? NOBODY;
    const before = noted.get(READER) ?? NOBODY;
    if (before === now) return;
    if (before === NOBODY) return noted.set(READER, now);
    void tell(async (client) => {
      await client.clear();
      noted.set(READER, now);
    });
  });
}

/** Remember what one's own runs took that end in sight, for the estimates of others like them. */
function learn(): void {
  let run: { chatId: string; agent: string | null } | null = null;
  let wasBusy = false;
  $effect(() => {
    const { chat } = page;
    if (chat === null) return;
    if (chat.busy) {
      if (!wasBusy || run?.chatId !== chat.id) run = { chatId: chat.id, agent: untrack(() => page.preferences.agent) };
      wasBusy = true;
      return;
    }
    wasBusy = false;
    const answer = chat.messages.at(-1);
    if (run?.chatId !== chat.id || answer?.head.role !== "assistant" || answer.finish === null) return;
    const { agent } = run;
    run = null;
    const question = chat.messages.find(({ id }) => id === answer.head.parentId);
    const took = recordedRunOf({ ...answer.head, content: answer.blocks.map(({ block }) => block) }, agent);
    if (took && question?.author === null) void tell((client) => client.remember(question.text, took));
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
function indexed({ id, head, text, displayStatus: standing }: MessageView): IndexedMessage[] {
  const isStored = standing === "sent" || standing === "done" || standing === "stopped";
  return isStored && text.trim() !== "" ? [{ id, text, at: Date.parse(head.createdAt) }] : [];
}

async function tell(say: (client: Client) => Promise<unknown>): Promise<void> {
  try {
    await say(await import("../agent/client.ts"));
  } catch (error) {
    console.info("The search index could not be updated.", error);
  }
}
