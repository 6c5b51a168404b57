// The agents that the person may use. Shows the last known list while the server is out of reach.

import { SvelteMap } from "svelte/reactivity";

import { ApiError, IndexedDbStore, isRequestError, MemoryStore, request, withRetry } from "@khala/client";
import type { Agent, AgentChanges, AgentLink, Items, NewAgent, Store } from "@khala/client";
import { isSharedAgent } from "./agent-address.ts";
import type { AgentsModel } from "./page-model.ts";
import { m } from "../i18n/messages.ts";

/** The list of one account, or of guests. */
type StoredList = { id: string; agents: readonly Agent[] };

const GUEST = "guest";
const MAX_ATTEMPTS = 3;

/** What the catalog needs of the page. */
export interface AgentsContext {
  userId(): string | null;
  /** The agent for the next messages, by name or link. */
  chosen(): string | null;
  /** The chosen agent does not exist any more. */
  onChosenGone(agent: string): void;
}

export class AgentCatalog implements AgentsModel {
  readonly #context: AgentsContext;
  readonly #store: Store<StoredList>;
  items: readonly Agent[] | null = $state.raw(null);
  isCurrent = $state(false);
  hasFailed = $state(false);
  /** Agents that were opened by a link, by that link. */
  readonly #shared = new SvelteMap<string, Agent>();

  constructor(context: AgentsContext, store: Store<StoredList> = createStore()) {
    this.#context = context;
    this.#store = store;
  }

  find(agent: string | null): Agent | null {
    if (agent === null) return null;
    return (isSharedAgent(agent) ? this.#shared.get(agent) : this.items?.find(({ name }) => name === agent)) ?? null;
  }

  titleOf(agent: string): string {
    return this.find(agent)?.title ?? (isSharedAgent(agent) ? m.shared_agent() : agent);
  }

  async load(): Promise<void> {
    const owner = this.#owner();
    this.hasFailed = false;
    if (this.items === null) await this.#restore(owner);
    try {
      const { items } = await withRetry(() => request<Items<Agent>>("GET", "/api/agents"), { maxAttempts: MAX_ATTEMPTS });
      if (owner !== this.#owner()) return;
      [this.items, this.isCurrent] = [items, true];
      await this.#remember({ id: owner, agents: items });
      await this.#checkChosen();
    } catch (error) {
      if (!isRequestError(error)) throw error;
      if (owner === this.#owner()) [this.hasFailed, this.isCurrent] = [true, false];
    }
  }

  async lastKnown(): Promise<readonly Agent[]> {
    if (this.items === null) await this.#restore(this.#owner());
    if (this.items === null) await this.load();
    return this.items ?? [];
  }

  async open(link: string): Promise<Agent | null> {
    try {
      const agent = await withRetry(() => request<Agent>("GET", `/api/agents/${link}`), { maxAttempts: MAX_ATTEMPTS });
      this.#shared.set(link, agent);
      return agent;
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return null;
      throw error;
    }
  }

  create(agent: NewAgent): Promise<Agent> {
    return this.#change(request<Agent>("POST", "/api/agents", { body: agent }));
  }

  change(name: string, changes: AgentChanges): Promise<Agent> {
    return this.#change(request<Agent>("PATCH", `/api/agents/${name}`, { body: changes }));
  }

  async remove(name: string): Promise<void> {
    await this.#change(request<null>("DELETE", `/api/agents/${name}`));
  }

  async share(name: string): Promise<string> {
    return (await this.#change(request<AgentLink>("POST", `/api/agents/${name}/link`))).link;
  }

  async unshare(name: string): Promise<void> {
    await this.#change(request<null>("DELETE", `/api/agents/${name}/link`));
  }

  /** Another account, or none, uses the page: forget what the one before could read. */
  changeOwner(before: string | null): void {
    [this.items, this.isCurrent, this.hasFailed] = [null, false, false];
    this.#shared.clear();
    if (before !== null) void this.#forget(before);
    if (this.#context.chosen() !== null) void this.load();
  }

  async #change<Answer>(answer: Promise<Answer>): Promise<Answer> {
    const changed = await answer;
    await this.load();
    return changed;
  }

  /** A chosen agent that does not exist any more would fail each message. */
  async #checkChosen(): Promise<void> {
    const chosen = this.#context.chosen();
    if (chosen === null || this.find(chosen) !== null) return;
    if (!isSharedAgent(chosen) || (await this.open(chosen)) === null) this.#context.onChosenGone(chosen);
  }

  #owner(): string {
    return this.#context.userId() ?? GUEST;
  }

  async #restore(owner: string): Promise<void> {
    const stored = await this.#tryStore(() => this.#store.get(owner));
    if (stored && this.items === null && owner === this.#owner()) this.items = stored.agents;
  }

  async #remember(list: StoredList): Promise<void> {
    await this.#tryStore(() => this.#store.put(list));
  }

  async #forget(owner: string): Promise<void> {
    await this.#tryStore(() => this.#store.remove(owner));
  }

  /** The list is only stored for times without the server: the page works without it. */
  async #tryStore<Result>(act: () => Promise<Result>): Promise<Result | undefined> {
    try {
      return await act();
    } catch (error) {
      console.info("khala", "The list of agents can't be stored in this browser.", error);
      return undefined;
    }
  }
}

function createStore(): Store<StoredList> {
  return "indexedDB" in globalThis ? new IndexedDbStore("khala-agents") : new MemoryStore();
}
