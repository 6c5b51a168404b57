// Words about messages and the people in a chat, and numbers as people read them.

import { STOPPED, dollars, stepOf } from "../autopilot/run.ts";
import type { Finish, FinishReason } from "../khala/frames.ts";
import { milliseconds } from "../tasks/words.ts";
import type { BlockView, MessageView, Participant, Standing, Trouble } from "../state/shape.ts";

const STANDINGS: Partial<Record<Standing, string>> = {
  stopped: "Stopped",
  failed: "Failed",
  interrupted: "Interrupted – waiting for the connection",
};
const REASONS: Partial<Record<FinishReason, string>> = { ...STOPPED, tool_calls: "Left to the caller’s tools" };

/** How an answer ended, where that has to be said; else null. */
export function badge(standing: Standing, finish: Finish | null): string | null {
  return STANDINGS[standing] ?? (finish ? (REASONS[finish.reason] ?? null) : null);
}

/** "demo · 57 in, 200 out tokens · $0.0004 · 2.1 s" */
export function facts({ model, usage, costUsd, totalMs }: Finish): string {
  const tokens = `${usage.inputTokens.toLocaleString("en")} in, ${usage.outputTokens.toLocaleString("en")} out tokens`;
  return [model, tokens, costUsd && dollars(Number(costUsd)), totalMs !== undefined && milliseconds(totalMs)].filter(Boolean).join(" · ");
}

/** "Step 3/20 · waits for approval · 1,204 tokens · $0.01 so far", or nothing. */
export function progress({ round, blocks }: Pick<MessageView, "round" | "blocks">): string {
  const waits = blocks.some(({ block }) => block.type === "tool" && block.state === "blocked") && "waits for approval";
  const said = [stepOf({ round, blocks }), waits, used(round)].filter(Boolean).join(" · ");
  return said.slice(0, 1).toUpperCase() + said.slice(1);
}

function used(round: MessageView["round"]): string | null {
  const { usage, costUsd } = round ?? {};
  const tokens = usage && `${(usage.inputTokens + usage.outputTokens).toLocaleString("en")} tokens`;
  const parts = [tokens, costUsd && dollars(Number(costUsd))].filter(Boolean);
  return parts.length > 0 ? `${parts.join(" · ")} so far` : null;
}

/** How a question on its way stands; null once it has arrived. */
export function underway(standing: Standing, trouble: Trouble | null): string | null {
  if (standing === "sending") return trouble ? "Sending, trying again …" : "Sending …";
  if (standing === "queued") return "Queued: will be sent when you are back online";
  return standing === "failed" ? `Not sent. ${trouble?.reason ?? ""}`.trim() : null;
}

/** What is shown together: tool calls of a step that follow each other, or one block of another kind. */
type Shown = { key: string; step: number; tools: readonly BlockView[] } | { key: string; view: BlockView };

export function grouped(blocks: readonly BlockView[]): Shown[] {
  const found: { key: string; step: number; tools: BlockView[]; view?: BlockView }[] = [];
  for (const view of blocks) {
    const last = found.at(-1);
    const step = view.block.type === "tool" ? (view.block.step ?? 0) : -1;
    if (step < 0) found.push({ key: view.key, step, tools: [], view });
    else if (last?.step === step) last.tools.push(view);
    else found.push({ key: view.key, step, tools: [view] });
  }
  return found.map(({ key, step, tools, view }) => (view ? { key, view } : { key, step, tools }));
}

type Person = { id: string; name: string; typing: boolean };

/** Who is here besides us, as they are shown. */
export function people(participants: readonly Participant[]): Person[] {
  return participants.map(({ id, name, state }) => ({ id, name: name ?? "Guest", typing: state.typing === true }));
}

/** "Ada is typing …", or nothing. */
export function typingWords(present: readonly Person[]): string {
  const [first, second, ...rest] = present.filter(({ typing }) => typing).map(({ name }) => name);
  if (first === undefined) return "";
  if (second === undefined) return `${first} is typing …`;
  return rest.length > 0 ? `${rest.length + 2} people are typing …` : `${first} and ${second} are typing …`;
}
