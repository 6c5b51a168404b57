// Keeps the browser's search index up to date: it has the chats that were open, and none that were removed or became unreadable.

import { untrack } from "svelte";

import type { IndexedMessage } from "../agent/client.ts";
import { recordedRunOf } from "../agent/recorded-run.ts";
import { page } from "../state/page.svelte.ts";
import { BrowserStorage } from "../browser/browser-storage.ts";
import type { ChatView, MessageView } from "../state/page-model.ts";

/** A chat is indexed after it was idle for this long, in ms, so that indexing never delays typing or scrolling. */
const IDLE_MS = 1500;
/** The highest revision of a thread without messages of people. */
const MAX_EMPTY_REVISION = 2;
/** The storage key of the account whose chats are indexed. */
const READER_KEY = "khala.reader";
const ANONYMOUS = "nobody";
const store = new BrowserStorage(() => localStorage);

type Client = typeof import("../agent/client.ts");

/** Indexes the open chat whenever it is idle. Call it during the set-up of a component; it ends with the component. */
export function indexChats(): void {
  $effect(() => {
    const { chat } = page;
    if (!isIdle(chat)) return;
    const { id, thread, title, hasQuestions: asked } = chat;
    if (thread === null || (!asked && thread.revision <= MAX_EMPTY_REVISION)) return;
    if (!asked) return removeFromIndex(id); // it was reset
    const { revision } = thread;
    const index = (): void => void withClient((client) => untrack(() => client.index({ id, title, revision }, chat.messages.flatMap(indexedMessages), { ids: chat.ids, isWhole: !chat.hasMore })));
    const timer = setTimeout(index, IDLE_MS);
    return () => clearTimeout(timer);
  });

  recordRuns();

  $effect(() => {
    if (page.chat?.refusal && page.chat.refusal.code !== "protocol") removeFromIndex(page.chat.id);
  });

  // After a sign-out the index is cleared, also on the next visit if this page closes before that is done.
  $effect(() => {
    const now = page.account.user?.id ?? ANONYMOUS;
    const before = store.get(READER_KEY) ?? ANONYMOUS;
    if (before === now) return;
    if (before === ANONYMOUS) return store.set(READER_KEY, now);
    void withClient(async (client) => {
      await client.clear();
      store.set(READER_KEY, now);
    });
  });
}

/** Records the duration and usage of one's own runs that end while their chat is open, for estimates of similar runs. */
function recordRuns(): void {
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
    const recorded = recordedRunOf({ ...answer.head, content: answer.blocks.map(({ block }) => block) }, agent);
    if (recorded && question?.author === null) void withClient((client) => client.remember(question.text, recorded));
  });
}

/** Removes a chat from the index. */
export function removeFromIndex(threadId: string): void {
  void withClient((client) => client.forget(threadId));
}

function isIdle(chat: ChatView | null): chat is ChatView {
  return chat !== null && !chat.loading && !chat.stale && !chat.busy && chat.refusal === null;
}

/** The searchable text of a message; none for messages that are unsent or still being written. */
function indexedMessages({ id, head, text, displayStatus: standing }: MessageView): IndexedMessage[] {
  const isStored = standing === "sent" || standing === "done" || standing === "stopped";
  return isStored && text.trim() !== "" ? [{ id, text, at: Date.parse(head.createdAt) }] : [];
}

async function withClient(use: (client: Client) => Promise<unknown>): Promise<void> {
  try {
    await use(await import("../agent/client.ts"));
  } catch (error) {
    console.info("The search index could not be updated.", error);
  }
}
