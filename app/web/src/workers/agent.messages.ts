// The messages between the page and its agent worker: a request with an id, and a reply with the same id.

import type { Prices } from "../agent/cost.ts";
import type { IncrementalCount } from "../agent/token-counts.ts";
import type { Estimate } from "../agent/estimate.ts";
import type { Engine } from "../agent/engines/engine.ts";
import type { RecordedRun } from "../agent/run-history.ts";
import type { RankedAgent, RoutableAgent } from "../agent/router.ts";
import type { Extent, SearchResult, IndexedMessage, IndexedThread } from "../agent/search/message-archive.ts";

/** The state of the worker. `persistent` is false where the browser stores nothing; `failures` lists what could not start. */
export type AgentInfo = { engine: Engine["name"]; persistent: boolean; messages: number; runs: number; failures: string[] };

/** The arguments and the result of each request. */
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

/** Broadcast to the agent workers of other tabs after a change of the shared database. */
export type AgentBroadcast = { kind: "cleared" } | { kind: "forgotten"; threadId: string } | { kind: "indexed"; threadId: string };
