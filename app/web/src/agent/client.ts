// What the page asks of its agent worker. The worker and all that it needs are loaded with the first question.

import type { AgentApi, AgentInfo } from "../workers/agent.messages.ts";
import type { Prices } from "./cost.ts";
import { createCountClient } from "./count-client.ts";
import type { Estimate } from "./estimate.ts";
import { AgentWorkerClient } from "./worker-client.ts";
import type { RecordedRun } from "./run-history.ts";
import type { RankedAgent, RoutableAgent } from "./router.ts";
import type { Extent, SearchResult, IndexedMessage, IndexedThread } from "./search/message-archive.ts";
import type { TokenCount } from "./token-counter.ts";

export { AgentError } from "./worker-client.ts";
export type { TokenCount, Estimate, Extent, SearchResult, IndexedMessage, IndexedThread, Prices, RankedAgent, AgentInfo, RoutableAgent, RecordedRun };

const link = new AgentWorkerClient(() => new Worker(new URL("../workers/agent.ts", import.meta.url), { type: "module", name: "agent" }));
const counts = createCountClient((args: AgentApi["count"]["args"]) => link.request("count", args));

/** Which engine it has, and how much it knows. */
export const ready = (): Promise<AgentInfo> => link.request("ready", {});

/**
 * Makes messages of a thread, and its title, searchable; texts that are there already cost little. Says how many were new.
 * What the extent shows to be deleted can't be found any more. `revision` is the thread's; an older one than is indexed
 * changes nothing.
 */
export const index = ({ id, title, revision }: IndexedThread, messages: readonly IndexedMessage[], { ids, isWhole }: Extent): Promise<number> =>
  link.request("index", {
    thread: { id, title, revision },
    messages: messages.map((message) => ({ id: message.id, text: message.text, at: message.at })),
    extent: { ids: [...ids], isWhole },
  });

/** The revision at which a thread was last indexed, or null. */
export const revision = (threadId: string): Promise<number | null> => link.request("revision", { threadId });

/** Takes a thread out of the search: it was deleted, reset, or may not be read any more. */
export const forget = (threadId: string): Promise<null> => link.request("forget", { threadId });

/** Forgets all messages and all runs, in all tabs: for signing out. */
export const clear = (): Promise<null> => link.request("clear", {});

/** At most `k` messages: those with the words of the query first, then those that are lexically alike. */
export const search = (query: string, k: number): Promise<SearchResult[]> => link.request("search", { query, k });

/** The agents, likeliest first. */
export const route = (task: string, agents: readonly RoutableAgent[]): Promise<RankedAgent[]> =>
  link.request("route", { task, agents: agents.map(plainly) });

/** What a task will take; priced for the model, or the server's default. */
export const estimate = (task: string, model?: string): Promise<Estimate> => link.request("estimate", { task, model: model ?? null });

/** The tokens of an answer as it grows. `text` is all of it so far; only what is new goes to the worker. */
export const count = (runId: string, text: string, model: string): Promise<TokenCount> => counts(runId, text, model);

/** Remembers a run that has ended, for estimates; `text` is what was asked, of which only a vector is kept. */
export const remember = (text: string, run: RecordedRun): Promise<null> => link.request("remember", { text, run: { ...run, tools: [...run.tools] } });

/** The server's price list, or the last one that it gave. */
export const prices = (): Promise<Prices> => link.request("prices", {});

/** Without what only the page needs. What is reactive is copied here and above, because proxies can't be sent. */
function plainly({ id, name, description, instructions, tools, prompts }: RoutableAgent): RoutableAgent {
  return { id, name, description, instructions, tools: [...tools], prompts: [...prompts] };
}
