// Turns the scenario of a state into what the page reads: the browser's storage, and the batches of the stream worker.

import { diffThread, plansFromSnapshot } from "@khala/client";
import type { Thread } from "@khala/client";

import type { StreamPort } from "../src/state/stream-client.ts";
import type { Batch, ToStream } from "../src/workers/stream.messages.ts";
import { NOW } from "./frozen.ts";
import { CHAT_ID, TIME } from "./fixtures/ids.ts";
import type { Scenario } from "./state.ts";

const REVISION = 40;

/** Fill the storage, before the page reads it. */
export function storeScenario({ user, role, isTemporary, known = [], draft, thread }: Scenario): void {
  if (user) localStorage.setItem("khala.user", JSON.stringify(user));
  const isOwn = user === undefined && role === undefined;
  const own = { id: CHAT_ID, title: thread?.title ?? null, created: true, usedAt: NOW, ...(isTemporary && { temporary: true }), ...(isOwn ? { key: "key" } : user ? {} : { shareKey: "key" }) };
  for (const chat of user && !isTemporary ? known : [own, ...known]) localStorage.setItem(`khala.chat.${chat.id}`, JSON.stringify(chat));
  history.replaceState(null, "", `/t/${CHAT_ID}`);
  if (draft !== undefined) sessionStorage.setItem(`khala.draft.${CHAT_ID}`, draft);
}

/** A stream worker that answers with the state of the scenario, once. */
export function streamOf(scenario: Scenario): StreamPort {
  const port: StreamPort = {
    onmessage: null,
    postMessage(message: ToStream): void {
      if (message.type === "follow" && scenario.connection !== "loading") port.onmessage?.(new MessageEvent("message", { data: batchOf(scenario, message) }));
    },
  };
  return port;
}

function batchOf(scenario: Scenario, { generation, attempt }: Extract<ToStream, { type: "follow" }>): Batch {
  const { connection = "live", refusal, user } = scenario;
  const isLive = connection === "live";
  return {
    generation,
    lag: 0,
    connection: isLive ? { phase: "live" } : { phase: "waiting", until: NOW + 8_000 },
    ...(user && { list: { whole: true, revision: 1, entries: [...(scenario.threads ?? [])], removed: [], hasMore: false, invitations: scenario.invitations ?? [] } }),
    ...(refusal ? { refusal: { ...refusal, attempt } } : { patch: patchOf(scenario), isStale: !isLive && connection !== "waiting", present: { participants: [...(scenario.present ?? [])], more: 0 } }),
  };
}

function patchOf({ user, role, messages = [], plans = [], hasMore = false, thread }: Scenario): NonNullable<Batch["patch"]> {
  const isOwner = user !== undefined && (role === undefined || role === "owner");
  const shown: Thread = { id: CHAT_ID, visibility: "private", revision: REVISION, createdAt: TIME, updatedAt: TIME, ...(isOwner && { ownerId: user.id }), ...thread };
  return diffThread(null, { revision: REVISION, thread: shown, messages, hasMore, plans: plansFromSnapshot({ revision: REVISION, plans: [...plans] }) });
}
