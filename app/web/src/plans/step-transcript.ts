// The transcript of a step that has ended, which the page does not hold: its run's parts, read over REST and folded.

import { diffThread, EMPTY_THREAD, fold } from "@khala/client";
import type { Part, PartPage, Run } from "@khala/client";
import { StoredMessage } from "../state/message-views.svelte.ts";
import type { MessageView } from "../state/page-model.ts";
import type { CallApi } from "./plan-details.svelte.ts";

const PARTS_PER_PAGE = 1000;
/** A longer transcript is cut. */
const MAX_PAGES = 50;

/** The answer of a run. Errors as those of `request`. */
export async function readTranscript(runId: string, send: CallApi): Promise<MessageView> {
  const run = await send<Run>("GET", `/api/runs/${runId}`);
  const parts: Part[] = [];
  let after = -1;
  for (let count = 0; count < MAX_PAGES; count++) {
    const page = await send<PartPage>("GET", `/api/runs/${runId}/parts?after=${after}&limit=${PARTS_PER_PAGE}`);
    parts.push(...page.items);
    after = page.nextAfter;
    if (page.done || page.items.length === 0) break;
  }
  return answerOf(run, parts);
}

function answerOf(run: Run, parts: readonly Part[]): MessageView {
  const { messageId, threadId, createdAt, finish, status } = run;
  const failure = parts.findLast((part) => part.kind === "error")?.data;
  const state = {
    ...{ id: messageId, threadId, runId: run.id, role: "assistant" as const, seq: parts.length, createdAt, updatedAt: createdAt },
    ...{ status: status === "final" || status === "error" || status === "canceled" ? status : ("streaming" as const) },
    ...{ content: fold([], parts), step: { planId: "", stepId: "", attempt: 0 }, ...(finish && { finish }), ...(failure && { failure }) },
  };
  const [patch] = diffThread(null, { ...EMPTY_THREAD, messages: [state] }).messages;
  if (patch === undefined) throw new Error("A new message is always a change.");
  const message = new StoredMessage(patch.head, { isInterrupted: false, isQueued: () => false, versionsOf: () => [], authorOf: () => null });
  message.applyPatch(patch);
  return message;
}
