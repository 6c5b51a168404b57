// The agent worker: vectors, search, token counts, routing and estimates, off the page's main thread.

/// <reference lib="webworker" />
import { AgentService, handleRequest } from "../agent/agent-service.ts";
import { chooseEngine } from "../agent/engines/choose.ts";
import type { AgentBroadcast, AgentRequest } from "./agent.messages.ts";

declare const self: DedicatedWorkerGlobalScope;

const others = new BroadcastChannel("khala-agent");
const agent = AgentService.start({
  engine: () => chooseEngine(),
  indexedDB: self.indexedDB,
  fetch: (path, init) => self.fetch(path, init),
  clock: () => Date.now(),
  broadcast: (news) => others.postMessage(news),
});

others.onmessage = ({ data }: MessageEvent<AgentBroadcast>) => {
  // An error here ends the worker; a new worker reads the database again.
  void agent.then((started) => started.handleBroadcast(data)).catch((error: unknown) => self.reportError(error));
};
self.onmessage = ({ data }: MessageEvent<AgentRequest>) => {
  void handleRequest(agent, data).then((reply) => self.postMessage(reply));
};
