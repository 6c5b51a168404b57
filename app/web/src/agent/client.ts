// What the page asks of its agent worker. The worker and all that it needs are loaded with the first question.

import type { AgentApi, AgentInfo } from "../workers/agent.messages.ts";
import type { Prices } from "./cost.ts";
import { countsOf } from "./counting.ts";
import type { Estimate } from "./estimate.ts";
import { AgentLink } from "./link.ts";
import type { Run } from "./patterns.ts";
import type { Ranked, Routable } from "./router.ts";
import type { Extent, Found, IndexedMessage, IndexedThread } from "./search/archive.ts";
import type { Count } from "./tokens.ts";

export { AgentError } from "./link.ts";
export type { Count, Estimate, Extent, Found, IndexedMessage, IndexedThread, Prices, Ranked, AgentInfo, Routable, Run };

const link = new AgentLink(() => new Worker(new URL("../workers/agent.ts", import.meta.url), { type: "module", name: "agent" }));
const counts = countsOf((asked: AgentApi["count"]["asked"]) => link.ask("count", asked));

/** Which engine it has, and how much it knows. */
export const ready = (): Promise<AgentInfo> => link.ask("ready", {});

/**
 * Makes messages of a thread, and its title, searchable; texts that are there already cost little. Says how many were new.
 * What the extent shows to be deleted can't be found any more. `revision` is the thread's; an older one than is indexed
 * changes nothing.
 */
export const index = ({ id, title, revision }: IndexedThread, messages: readonly IndexedMessage[], { ids, isWhole }: Extent): Promise<number> =>
  link.ask("index", {
    thread: { id, title, revision },
    messages: messages.map((message) => ({ id: message.id, text: message.text, at: message.at })),
    extent: { ids: [...ids], isWhole },
  });

/** The revision at which a thread was last indexed, or null. */
export const revision = (threadId: string): Promise<number | null> => link.ask("revision", { threadId });

/** Takes a thread out of the search: it was deleted, reset, or may not be read any more. */
export const forget = (threadId: string): Promise<null> => link.ask("forget", { threadId });

/** Forgets all messages and all runs, in all tabs: for signing out. */
export const clear = (): Promise<null> => link.ask("clear", {});

/** At most `k` messages: those with the words of the query first, then those that are lexically alike. */
export const search = (query: string, k: number): Promise<Found[]> => link.ask("search", { query, k });

/** The agents, likeliest first. */
export const route = (task: string, agents: readonly Routable[]): Promise<Ranked[]> =>
  link.ask("route", { task, agents: agents.map(plainly) });

/** What a task will take; priced for the model, or the server's default. */
export const estimate = (task: string, model?: string): Promise<Estimate> => link.ask("estimate", { task, model: model ?? null });

/** The tokens of an answer as it grows. `text` is all of it so far; only what is new goes to the worker. */
export const count = (runId: string, text: string, model: string): Promise<Count> => counts(runId, text, model);

/** Remembers a run that has ended, for estimates; `text` is what was asked, of which only a vector is kept. */
export const remember = (text: string, run: Run): Promise<null> => link.ask("remember", { text, run: { ...run, tools: [...run.tools] } });

/** The server's price list, or the last one that it gave. */
export const prices = (): Promise<Prices> => link.ask("prices", {});

/** Without what only the page needs. What is reactive is copied here and above, because proxies can't be sent. */
function plainly({ id, name, description, instructions, tools, prompts }: Routable): Routable {
  return { id, name, description, instructions, tools: [...tools], prompts: [...prompts] };
}
