// What the page and its agent worker say to each other: a request with an id, and its answer with the same id.

import type { Prices } from "../agent/cost.ts";
import type { IncrementalCount } from "../agent/token-counts.ts";
import type { Estimate } from "../agent/estimate.ts";
import type { Engine } from "../agent/engines/engine.ts";
import type { RecordedRun } from "../agent/run-history.ts";
import type { RankedAgent, RoutableAgent } from "../agent/router.ts";
import type { Extent, SearchResult, IndexedMessage, IndexedThread } from "../agent/search/message-archive.ts";

/** What the worker is made of; `persistent` is false where this browser keeps nothing, `failures` say what could not start. */
export type AgentInfo = { engine: Engine["name"]; persistent: boolean; messages: number; runs: number; failures: string[] };

/** Each request by its name: what it is asked with, and what it answers. */
export interface AgentApi {
  ready: { args: object; result: AgentInfo };
  index: { args: { thread: IndexedThread; messages: readonly IndexedMessage[]; extent: Extent }; result: number };
  revision: { args: { threadId: string }; result: number | null };
  forget: { args: { threadId: string }; result: null };
  clear: { args: object; result: null };
  search: { args: { query: string; k: number }; result: SearchResult[] };
  route: { args: { task: string; agents: readonly RoutableAgent[] }; result: RankedAgent[] };
  estimate: { args: { task: string; model: string | null }; result: Estimate };
  count: { args: { runId: string; from: number; text: string; model: string }; result: IncrementalCount };
  remember: { args: { text: string; run: RecordedRun }; result: null };
  prices: { args: object; result: Prices };
}

export type AgentMethod = keyof AgentApi;
export type AgentRequest = { [N in AgentMethod]: { id: number; name: N; args: AgentApi[N]["args"] } }[AgentMethod];
export type AgentReply = { id: number; result: AgentApi[AgentMethod]["result"] } | { id: number; error: { name: string; message: string } };

/** What agent workers of other tabs tell each other: that something was added or removed in the store that they share. */
export type AgentBroadcast = { kind: "cleared" } | { kind: "forgotten"; threadId: string } | { kind: "indexed"; threadId: string };
