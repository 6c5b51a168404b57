// @khala/client: a client for a Khala server, for browsers, workers and Node. See README.md.

export type * from "./frames.ts";
export { PROTOCOL, SUBPROTOCOL } from "./frames.ts";
export * from "./khala.ts";
export * from "./threads-client.ts";
export * from "./thread-client.ts";
export * from "./thread-view.ts";
export * from "./run-client.ts";
export * from "./plans-client.ts";
export type { Credentials, TokenProvider } from "./credentials.ts";
export type { ApiOptions, QueryParameters } from "./api.ts";
export type { Observable, StopListening } from "./observable.ts";
export { valuesOf } from "./observable.ts";
export * from "./branches.ts";
export * from "./realtime-client.ts";
export * from "./fold.ts";
export * from "./ids.ts";
export { Outbox, OutboxFullError, sendMessage } from "./outbox.ts";
export type { Locks, NewOutboxEntry, OutboxEntry, OutboxOptions, OutboxState } from "./outbox.ts";
export * from "./patches.ts";
export * from "./plans.ts";
export { ApiError, backoffMs, downloadBlob, isRequestError, isTransient, NetworkError, request, requestEvents, retryDelayMs, retryNow, retrySignal, sleep, upload, withRetry } from "./requests.ts";
export type { AccessKeys, RequestOptions, UploadOptions } from "./requests.ts";
export * from "./state.ts";
export { IndexedDbStore, MemoryStore } from "./stores.ts";
export type { Store } from "./stores.ts";
export { escapeInvisible, markInvisible, visibleJson, withoutInvisible } from "./visible-text.ts";
