// @khala/client: follow and write in threads of a Khala server, in pages, workers and Node. README.md says how.

export type * from "./frames.ts";
export { PROTOCOL, SUBPROTOCOL } from "./frames.ts";
export * from "./branches.ts";
export * from "./feed.ts";
export * from "./fold.ts";
export * from "./ids.ts";
export * from "./outbox.ts";
export * from "./patches.ts";
export * from "./requests.ts";
export * from "./state.ts";
export * from "./stores.ts";
