// The page's API of the agent worker. The worker and its code are loaded with the first request.

import type { AgentApi, AgentInfo } from "../workers/agent.messages.ts";
import type { Prices } from "./cost.ts";
import { createCountClient } from "./count-client.ts";
import type { Estimate } from "./estimate.ts";
import { AgentWorkerClient } from "./worker-client.ts";
import type { RecordedRun } from "./run-history.ts";
import type { RankedAgent, RoutableAgent } from "./router.ts";
import type { Extent, SearchResult, IndexedMessage, IndexedThread } from "./search/message-archive.ts";
import type { TokenCount } from "./token-counter.ts";

export { AgentWorkerError } from "./worker-client.ts";
export type { TokenCount, Estimate, Extent, SearchResult, IndexedMessage, IndexedThread, Prices, RankedAgent, AgentInfo, RoutableAgent, RecordedRun };

const link = new AgentWorkerClient(() => new Worker(new URL("../workers/agent.ts", import.meta.url), { type: "module", name: "agent" }));
const counts = createCountClient((args: AgentApi["count"]["args"]) => link.request("count", args));

/** The engine and the contents of the worker. */
export const ready = (): Promise<AgentInfo> => link.request("ready", {});

/**
 * Index messages of a thread and its title for search, and return how many texts were new. Unchanged texts are cheap. Messages
 * that `extent` shows to be deleted are removed. `revision` is the thread's revision; an older one changes nothing.
 */
export const index = ({ id, title, revision }: IndexedThread, messages: readonly IndexedMessage[], { ids, isWhole }: Extent): Promise<number> =>
  link.request("index", {
    thread: { id, title, revision },
    messages: messages.map((message) => ({ id: message.id, text: message.text, at: message.at })),
    extent: { ids: [...ids], isWhole },
  });

/** The revision at which a thread was last indexed, or null. */
export const revision = (threadId: string): Promise<number | null> => link.request("revision", { threadId });

/** Remove a thread from the search, because it was deleted, reset, or access was revoked. */
export const forget = (threadId: string): Promise<null> => link.request("forget", { threadId });

/** Delete all messages and runs in all tabs, for signing out. */
export const clear = (): Promise<null> => link.request("clear", {});

/** Up to `k` messages: those that contain the words of the query first, then lexically similar ones. */
export const search = (query: string, k: number): Promise<SearchResult[]> => link.request("search", { query, k });

/** The agents, most likely first. */
export const route = (task: string, agents: readonly RoutableAgent[]): Promise<RankedAgent[]> =>
  link.request("route", { task, agents: agents.map(plainly) });

/** Estimate a task, priced for the model or the server's default. */
export const estimate = (task: string, model?: string): Promise<Estimate> => link.request("estimate", { task, model: model ?? null });

/** Count the tokens of a growing answer. `text` is the whole text so far; only the new part is posted to the worker. */
export const count = (runId: string, text: string, model: string): Promise<TokenCount> => counts(runId, text, model);

/** Remember a run that has ended, for estimates. Only a vector of `text`, the task, is stored. */
export const remember = (text: string, run: RecordedRun): Promise<null> => link.request("remember", { text, run: { ...run, tools: [...run.tools] } });

/** The server's price list, or the last one received. */
export const prices = (): Promise<Prices> => link.request("prices", {});

/** Without fields that only the page needs. Reactive proxies can't be posted, so values are copied here and above. */
function plainly({ id, name, description, instructions, tools, prompts }: RoutableAgent): RoutableAgent {
  return { id, name, description, instructions, tools: [...tools], prompts: [...prompts] };
}
