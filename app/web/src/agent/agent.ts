// All that the agent worker can do, put together; it needs no worker to be tested.

import type { AgentBroadcast, AgentApi, AgentMethod, AgentInfo } from "../workers/agent.messages.ts";
import { priceOf, type Price } from "./cost.ts";
import { Counts } from "./counts.ts";
import { openDatabase } from "./database.ts";
import type { Engine } from "./engines/engine.ts";
import { estimate, NEAREST } from "./estimate.ts";
import { Patterns } from "./patterns.ts";
import { PriceList, type Fetch } from "./prices.ts";
import { route } from "./router.ts";
import { Archive } from "./search/archive.ts";
import { MessageIndex } from "./search/messages.ts";

export type Surroundings = {
  engine: () => Promise<{ engine: Engine; failures: string[] }>;
  indexedDB: IDBFactory | undefined;
  fetch: Fetch;
  /** Milliseconds. */
  clock: () => number;
  /** Tells the workers of other tabs. */
  tell: (news: AgentBroadcast) => void;
};

/** An estimate that has to wait longer than this for the prices does without. */
const PRICES_PATIENCE_MS = 300;

type Answers = { [N in AgentMethod]: (asked: AgentApi[N]["asked"]) => Promise<AgentApi[N]["answer"]> };

export class Agent {
  readonly answers: Answers;
  readonly #archive: Promise<Archive>;
  readonly #patterns: Patterns;

  /** The archive comes later than the rest, because to load it may take a second or two. */
  private constructor(archive: Promise<Archive>, patterns: Patterns, prices: PriceList, ready: Omit<AgentInfo, "messages" | "runs">, tell: Surroundings["tell"]) {
    this.#archive = archive;
    this.#patterns = patterns;
    const counts = new Counts();
    this.answers = {
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
        const [{ runs }, price] = await Promise.all([patterns.recall(task, NEAREST), priceSoon(prices, model)]);
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

  /** Starts with what was kept. Where nothing can be kept all is as well, for as long as the worker lives. */
  static async start({ engine, indexedDB, fetch, clock, tell }: Surroundings): Promise<Agent> {
    const failures: string[] = [];
    const database = await open(indexedDB, failures);
    const [forMessages, forRuns] = await Promise.all([engine(), engine()]);
    failures.push(...forMessages.failures);
    const patterns = await loaded(new Patterns(forRuns.engine, database), failures);
    const archive = loaded(new Archive(new MessageIndex(forMessages.engine), database), failures);
    const ready = { engine: forMessages.engine.name, persistent: database !== null, failures };
    return new Agent(archive, patterns, new PriceList(database, fetch, clock), ready, tell);
  }

  /** Follows what another tab has done to the store. */
  async hear(news: AgentBroadcast): Promise<void> {
    const archive = await this.#archive;
    switch (news.kind) {
      case "cleared":
        archive.dropAllHeld();
        this.#patterns.forgetHeld();
        break;
      case "forgotten":
        archive.dropHeld(news.threadId);
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

/** What can't be read is told, and begun anew. */
async function loaded<T extends { load(): Promise<void> }>(store: T, failures: string[]): Promise<T> {
  await store.load().catch((error: unknown) => failures.push(`store: ${reasonOf(error)}`));
  return store;
}

function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

async function priceSoon(prices: PriceList, model: string | null): Promise<Price | null> {
  const late = new Promise<null>((resolve) => setTimeout(() => resolve(null), PRICES_PATIENCE_MS));
  // Without prices there is an estimate all the same, only without a cost.
  const list = await Promise.race([prices.get().catch(() => null), late]);
  return list && priceOf(list, model ?? list.default);
}
