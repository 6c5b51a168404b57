// What the page and its agent worker say to each other: a request with an id, and its answer with the same id.

import type { Prices } from "../agent/cost.ts";
import type { Counted } from "../agent/counts.ts";
import type { Estimate } from "../agent/estimate.ts";
import type { Engine } from "../agent/engines/engine.ts";
import type { Run } from "../agent/patterns.ts";
import type { Ranked, Routable } from "../agent/router.ts";
import type { Extent, Found, IndexedMessage, IndexedThread } from "../agent/search/archive.ts";

/** What the worker is made of; `persistent` is false where this browser keeps nothing, `failures` say what could not start. */
export type AgentInfo = { engine: Engine["name"]; persistent: boolean; messages: number; runs: number; failures: string[] };

/** Each request by its name: what it is asked with, and what it answers. */
export interface AgentApi {
  ready: { asked: object; answer: AgentInfo };
  index: { asked: { thread: IndexedThread; messages: readonly IndexedMessage[]; extent: Extent }; answer: number };
  revision: { asked: { threadId: string }; answer: number | null };
  forget: { asked: { threadId: string }; answer: null };
  clear: { asked: object; answer: null };
  search: { asked: { query: string; k: number }; answer: Found[] };
  route: { asked: { task: string; agents: readonly Routable[] }; answer: Ranked[] };
  estimate: { asked: { task: string; model: string | null }; answer: Estimate };
  count: { asked: { runId: string; from: number; text: string; model: string }; answer: Counted };
  remember: { asked: { text: string; run: Run }; answer: null };
  prices: { asked: object; answer: Prices };
}

export type AgentMethod = keyof AgentApi;
export type AgentRequest = { [N in AgentMethod]: { id: number; name: N; asked: AgentApi[N]["asked"] } }[AgentMethod];
export type AgentReply = { id: number; answer: AgentApi[AgentMethod]["answer"] } | { id: number; error: { name: string; message: string } };

/** What agent workers of other tabs tell each other: that something was added or removed in the store that they share. */
export type AgentBroadcast = { kind: "cleared" } | { kind: "forgotten"; threadId: string } | { kind: "indexed"; threadId: string };
