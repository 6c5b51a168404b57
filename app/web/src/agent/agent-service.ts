// The service of the agent worker, without the worker itself.

import type { AgentApi, AgentBroadcast, AgentInfo, AgentMethod, AgentReply, AgentRequest } from "../workers/agent.messages.ts";
import { priceOf, type Price } from "./cost.ts";
import { TokenCounts } from "./token-counts.ts";
import { openDatabase } from "./database.ts";
import type { Engine } from "./engines/engine.ts";
import { estimate, MAX_SIMILAR_RUNS } from "./estimate.ts";
import { RunHistory } from "./run-history.ts";
import { PriceList, type FetchPath } from "./prices.ts";
import { route } from "./router.ts";
import { MessageArchive } from "./search/message-archive.ts";
import { MessageIndex } from "./search/message-index.ts";

export type AgentEnvironment = {
  engine: () => Promise<{ engine: Engine; failures: string[] }>;
  indexedDB: IDBFactory | undefined;
  fetch: FetchPath;
  /** Milliseconds since the epoch. */
  clock: () => number;
  /** Notifies the workers of other tabs. */
  broadcast: (news: AgentBroadcast) => void;
};

/** An estimate without a cost is returned if the prices take longer. */
const PRICES_TIMEOUT_MS = 300;

type AgentHandlers = { [N in AgentMethod]: (args: AgentApi[N]["args"]) => Promise<AgentApi[N]["result"]> };

export class AgentService {
  readonly handlers: AgentHandlers;
  readonly #archive: Promise<MessageArchive>;
  readonly #patterns: RunHistory;

  /** The archive is a promise, because loading it may take a second or two. */
  private constructor(archive: Promise<MessageArchive>, patterns: RunHistory, prices: PriceList, ready: Omit<AgentInfo, "messages" | "runs">, tell: AgentEnvironment["broadcast"]) {
    this.#archive = archive;
    this.#patterns = patterns;
    const counts = new TokenCounts();
    this.handlers = {
      ready: async () => ({ ...ready, messages: (await archive).size, runs: patterns.size }),
      index: async ({ thread, messages, extent }) => {
        const index = await archive;
        const before = index.size;
        const added = await index.add(thread, messages, extent);
        if (added > 0 || index.size < before) tell({ kind: "indexed", threadId: thread.id });
        return added;
      },
      revision: async ({ threadId }) => (await archive).revisionOf(threadId),
      forget: async ({ threadId }) => {
        await (await archive).forget(threadId);
        tell({ kind: "forgotten", threadId });
        return null;
      },
      clear: async () => {
        counts.clear();
        await Promise.all([(await archive).clear(), patterns.clear()]);
        tell({ kind: "cleared" });
        return null;
      },
      search: async ({ query, k }) => (await archive).search(query, k),
      route: ({ task, agents }) => Promise.resolve(route(task, agents)),
      estimate: async ({ task, model }) => {
        const [{ runs }, price] = await Promise.all([patterns.recall(task, MAX_SIMILAR_RUNS), priceWithin(prices, model)]);
        return estimate(task, runs, price);
      },
      count: ({ runId, from, text, model }) => counts.count(runId, from, text, model),
      remember: async ({ text, run }) => {
        await patterns.remember(text, run);
        return null;
      },
      prices: () => prices.get(),
    };
  }

  /** Start with what the database has. Without a database everything works in memory, as long as the worker lives. */
  static async start({ engine, indexedDB, fetch, clock, broadcast: tell }: AgentEnvironment): Promise<AgentService> {
    const failures: string[] = [];
    const database = await open(indexedDB, failures);
    const [forMessages, forRuns] = await Promise.all([engine(), engine()]);
    failures.push(...forMessages.failures);
    const patterns = await loaded(new RunHistory(forRuns.engine, database), failures);
    const archive = loaded(new MessageArchive(new MessageIndex(forMessages.engine), database), failures);
    const ready = { engine: forMessages.engine.name, persistent: database !== null, failures };
    return new AgentService(archive, patterns, new PriceList(database, fetch, clock), ready, tell);
  }

  /** Apply what another tab has done to the database. */
  async handleBroadcast(news: AgentBroadcast): Promise<void> {
    const archive = await this.#archive;
    switch (news.kind) {
      case "cleared":
        archive.clearMemory();
        this.#patterns.clearMemory();
        break;
      case "forgotten":
        archive.dropFromMemory(news.threadId);
        break;
      case "indexed":
        await archive.reload(news.threadId);
        break;
    }
  }
}

async function open(factory: IDBFactory | undefined, failures: string[]): Promise<IDBDatabase | null> {
  try {
    if (!factory) throw new Error("This browser has no IndexedDB.");
    return await openDatabase(factory);
  } catch (error) {
    failures.push(`store: ${reasonOf(error)}`);
    return null;
  }
}

/** A store that can't be read is reported and starts empty. */
async function loaded<T extends { load(): Promise<void> }>(store: T, failures: string[]): Promise<T> {
  await store.load().catch((error: unknown) => failures.push(`store: ${reasonOf(error)}`));
  return store;
}

function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

async function priceWithin(prices: PriceList, model: string | null): Promise<Price | null> {
  const late = new Promise<null>((resolve) => setTimeout(() => resolve(null), PRICES_TIMEOUT_MS));
  // Without prices the estimate has no cost.
  const list = await Promise.race([prices.get().catch(() => null), late]);
  return list && priceOf(list, model ?? list.default);
}

/** Handle one request to the agent. Never rejects: errors travel in the reply. */
export async function handleRequest(agent: Promise<AgentService>, request: AgentRequest): Promise<AgentReply> {
  try {
    const { handlers: answers } = await agent;
    // The arguments fit the method, which the compiler can't infer from a union.
    const result = answers[request.name] as (args: AgentApi[AgentMethod]["args"]) => Promise<AgentApi[AgentMethod]["result"]>;
    return { id: request.id, result: await result(request.args) };
  } catch (error) {
    return { id: request.id, error: error instanceof Error ? { name: error.name, message: error.message } : { name: "Error", message: String(error) } };
  }
}
