// Turns the world of a state into what the page reads: the browser's storage, and the batches of the stream worker.

import { diffThread, plansFromSnapshot } from "@khala/client";
import type { Thread } from "@khala/client";

import type { StreamPort } from "../src/state/stream-client.ts";
import type { Batch, ToStream } from "../src/workers/stream.messages.ts";
import { NOW } from "./frozen.ts";
import { CHAT_ID, TIME } from "./fixtures/ids.ts";
import type { World } from "./state.ts";

const REVISION = 40;

/** Fill the storage, before the page reads it. */
export function storeWorld({ user, role, known = [], draft, thread }: World): void {
  if (user) localStorage.setItem("khala.user", JSON.stringify(user));
  const isOwn = user === undefined && role === undefined;
  const own = { id: CHAT_ID, title: thread?.title ?? null, created: true, usedAt: NOW, ...(isOwn ? { key: "key" } : user ? {} : { shareKey: "key" }) };
  for (const chat of user ? known : [own, ...known]) localStorage.setItem(`khala.chat.${chat.id}`, JSON.stringify(chat));
  history.replaceState(null, "", `/t/${CHAT_ID}`);
  if (draft !== undefined) sessionStorage.setItem(`khala.draft.${CHAT_ID}`, draft);
}

/** A stream worker that answers with the state of the world, once. */
export function streamOf(world: World): StreamPort {
  const port: StreamPort = {
    onmessage: null,
    postMessage(message: ToStream): void {
      if (message.type === "follow" && world.connection !== "loading") port.onmessage?.(new MessageEvent("message", { data: batchOf(world, message) }));
    },
  };
  return port;
}

function batchOf(world: World, { generation, attempt }: Extract<ToStream, { type: "follow" }>): Batch {
  const { connection = "live", refusal, user } = world;
  const isLive = connection === "live";
  return {
    generation,
    lag: 0,
    connection: isLive ? { phase: "live" } : { phase: "waiting", until: NOW + 8_000 },
    ...(user && { list: { whole: true, revision: 1, entries: [...(world.threads ?? [])], removed: [], hasMore: false, invitations: world.invitations ?? [] } }),
    ...(refusal ? { refusal: { ...refusal, attempt } } : { patch: patchOf(world), isStale: !isLive && connection !== "waiting", present: { participants: [...(world.present ?? [])], more: 0 } }),
  };
}

function patchOf({ user, role, messages = [], plans = [], hasMore = false, thread }: World): NonNullable<Batch["patch"]> {
  const isOwner = user !== undefined && (role === undefined || role === "owner");
  const shown: Thread = { id: CHAT_ID, visibility: "private", revision: REVISION, createdAt: TIME, updatedAt: TIME, ...(isOwner && { ownerId: user.id }), ...thread };
  return diffThread(null, { revision: REVISION, thread: shown, messages, hasMore, plans: plansFromSnapshot({ revision: REVISION, plans: [...plans] }) });
}
