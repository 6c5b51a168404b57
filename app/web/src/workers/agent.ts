// The agent worker: vectors, search, tokens, routing and estimates, away from the page's thread.

/// <reference lib="webworker" />
import { Agent } from "../agent/agent.ts";
import { replyTo } from "../agent/answering.ts";
import { choose } from "../agent/engines/choose.ts";
import type { AgentBroadcast, AgentRequest } from "./agent.messages.ts";

declare const self: DedicatedWorkerGlobalScope;

const others = new BroadcastChannel("khala-agent");
const agent = Agent.start({
  engine: () => choose(),
  indexedDB: self.indexedDB,
  fetch: (path, init) => self.fetch(path, init),
  clock: () => Date.now(),
  tell: (news) => others.postMessage(news),
});

others.onmessage = ({ data }: MessageEvent<AgentBroadcast>) => {
  // What fails here ends the worker, and with a new one everything is read again.
  void agent.then((started) => started.hear(data)).catch((error: unknown) => self.reportError(error));
};
self.onmessage = ({ data }: MessageEvent<AgentRequest>) => {
  void replyTo(agent, data).then((reply) => self.postMessage(reply));
};
