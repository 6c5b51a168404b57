// The stored reasoning of a run, read over REST: it is no part of an answer's content.

import type { Part, PartPage } from "@khala/client";
import type { ChatView } from "../state/page-model.ts";

const PARTS_PER_PAGE = 1000;
/** Longer reasoning is cut. */
const MAX_PAGES = 50;

/** The model's reasoning, with an empty line between steps. Errors as those of `request`. */
export async function readReasoning(chat: Pick<ChatView, "call">, runId: string): Promise<string> {
  const parts: Part[] = [];
  let after = -1;
  for (let count = 0; count < MAX_PAGES; count++) {
    const page = await chat.call<PartPage>("GET", `/api/runs/${runId}/parts?after=${after}&limit=${PARTS_PER_PAGE}`);
    parts.push(...page.items);
    after = page.nextAfter;
    if (page.done || page.items.length === 0) break;
  }
  return reasoningIn(parts);
}

export function reasoningIn(parts: readonly Part[]): string {
  const steps: string[] = [];
  let isOpen = false;
  for (const part of parts) {
    if (part.kind !== "reasoning-delta") isOpen = false;
    else if (isOpen) steps.push((steps.pop() ?? "") + part.data.text);
    else isOpen = steps.push(part.data.text) > 0;
  }
  return steps.join("\n\n").trim();
}
