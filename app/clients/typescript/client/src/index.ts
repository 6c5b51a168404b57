// @khala/client: a client for the threads of a Khala server, for pages, workers and Node. See README.md.

export type * from "./frames.ts";
export { PROTOCOL, SUBPROTOCOL } from "./frames.ts";
export * from "./branches.ts";
export * from "./realtime-client.ts";
export * from "./fold.ts";
export * from "./ids.ts";
export * from "./outbox.ts";
export * from "./patches.ts";
export * from "./plans.ts";
export * from "./requests.ts";
export * from "./state.ts";
export * from "./stores.ts";
