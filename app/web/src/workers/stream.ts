// The stream worker: keeps the socket, the fold and the stored snapshots off the page's main thread.

import { isRequestError, RealtimeClient, request, retryNow, withRetry } from "@khala/client";
import type { Batch, ThreadKeys, ToStream } from "./stream.messages.ts";
import { Relay } from "./stream.relay.ts";
import { SnapshotStore } from "./stream.snapshots.ts";

let relay: Relay | null = null;

function start(url: string): Relay {
  const feed = new RealtimeClient(url, {
    onThread: (state, frame) => {
      const newest = frame?.type === "delta" ? frame.parts.at(-1) : undefined;
      const lag = newest ? Date.now() - Date.parse(newest.createdAt) : null;
      made.updateThread(state, { isSnapshot: frame?.type === "snapshot", wasReset: frame?.type === "snapshot" && frame.reset === true, lag });
    },
    onThreadList: (list) => made.updateList(list),
    onPresence: (participants, more) => made.updatePresence([...participants], more),
    onConnection: (connection) => made.updateConnection(connection),
    onRefused: (code, message) => made.handleRefusal(code, message),
    onSignedOut: () => made.handleSignedOut(),
    onError: (code, message) => console.warn("khala", code, message),
  });
  const ask = <Answer>(path: string, keys: ThreadKeys) => quietly(() => request<Answer>("GET", path, { keys }));
  const made = new Relay({ feed, stored: new SnapshotStore(), ask, post: (batch: Batch) => postMessage(batch) });
  return made;
}

/** The result of an optional request; undefined if it fails. */
async function quietly<Answer>(ask: () => Promise<Answer>): Promise<Answer | undefined> {
  try {
    return await withRetry(ask, { maxAttempts: 3 });
  } catch (error) {
    if (isRequestError(error)) return undefined;
    throw error;
  }
}

addEventListener("message", ({ data }: MessageEvent<ToStream>) => {
  if (data.type === "wake") retryNow();
  if (data.type === "start") relay = start(data.url);
  else void relay?.receive(data);
});
