// The requests and the thread subscription that a session needs of a Khala server.

import { downloadBlob, RealtimeClient, request, requestEvents, upload, withRetry } from "@khala/client";
import type { AccessKeys, BlobRef, ThreadState } from "@khala/client";

export interface Listener {
  state(state: ThreadState): void;
  /** The server refuses the subscription, from the start or later. */
  refused(code: string, message: string): void;
}

/** Requests fail with ApiError or NetworkError. All but `call` and `events` are retried until the server answers. */
export interface Server {
  call<T>(method: string, path: string, body?: unknown): Promise<T>;
  requestWithRetry<T>(method: string, path: string, body?: unknown): Promise<T>;
  upload(path: string, file: Blob): Promise<BlobRef>;
  text(path: string): Promise<string>;
  /** Sends a POST request, and passes on the events of its answer. Resolves at their end. */
  events(path: string, body: unknown, onEvent: (event: unknown) => void): Promise<void>;
  follow(threadId: string, on: Listener): void;
  close(): void;
}

/** A server at this origin, with these access keys. */
export function connect(origin: string, keys: AccessKeys): Server {
  const at = (path: string): string => new URL(path, origin).href;
  const ask = <T>(method: string, path: string, body?: unknown): Promise<T> => request<T>(method, at(path), body === undefined ? { keys } : { keys, body });
  let feed: RealtimeClient | null = null;
  return {
    call: ask,
    requestWithRetry: (method, path, body) => withRetry(() => ask(method, path, body)),
    upload: (path, file) => withRetry(() => upload(at(path), file, { keys })),
    text: async (path) => (await withRetry(() => downloadBlob(at(path), { keys }))).text(),
    events: (path, body, onEvent) => requestEvents(at(path), { keys, body }, onEvent),
    follow(threadId, on) {
      feed?.close();
      feed = new RealtimeClient(at("/api/ws").replace(/^http/, "ws"), { onThread: (state) => on.state(state), onRefused: (code, message) => on.refused(code, message) });
      feed.subscribe(threadId, keys);
    },
    close: () => feed?.close(),
  };
}
