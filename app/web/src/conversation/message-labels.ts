// Labels of messages and of the people in a chat, and the groups in which an answer's blocks are shown.

import { STOPPED, stepOf } from "../autopilot/run-status.ts";
import { formatNumber, formatUsd, joinParts } from "../state/format.ts";
import { withoutReplacedText } from "@khala/client";
import type { Block, Finish, FinishReason } from "@khala/client";
import { formatMilliseconds } from "../state/format.ts";
import type { BlockView, MessageView, Participant, MessageDisplayStatus, MessageError } from "../state/page-model.ts";
import { m } from "../i18n/messages.ts";

const STANDING_LABELS: Partial<Record<MessageDisplayStatus, string>> = {
  stopped: m.stopped(),
  failed: m.failed(),
  interrupted: m.interrupted_reconnecting(),
};
const REASON_LABELS: Partial<Record<FinishReason, string>> = { ...STOPPED, tool_calls: m.handed_over_to_your_app() };

/** Why an answer ended early, or null if it ended normally. */
export function endingLabel(standing: MessageDisplayStatus, finish: Finish | null): string | null {
  return STANDING_LABELS[standing] ?? (finish ? (REASON_LABELS[finish.reason] ?? null) : null);
}

/** What the server wrote into an answer about why it ended early: in its own words, as a notice, as text, or as both. */
export function storedReasonOf({ error, finish, blocks }: Pick<MessageView, "error" | "finish" | "blocks">): string | null {
  if (error) return error.reason;
  const notice = finish && blocks.findLast(({ block }) => block.type === "notice" && block.code === finish.reason)?.block;
  return notice?.type === "notice" ? notice.message : null;
}

/** Whether an answer was continued after its executor was lost. The server has no usage of the call that was lost. */
export function isResumed(blocks: readonly BlockView[]): boolean {
  return blocks.some(({ block }) => block.type === "notice" && block.code === "resumed");
}

/** The usage of an answer: "demo · 57 tokens in, 200 out · $0.0004 · 2.1 s". `isPartial`: more was used than the server has counted. */
export function usageLabel({ model, usage, costUsd, totalMs }: Finish, isPartial = false): string {
  const least = isPartial ? "≥ " : "";
  const tokens = m.tokens_in_out({ input: formatNumber(usage.inputTokens), output: formatNumber(usage.outputTokens) });
  return joinParts([model, least + tokens, costUsd && least + formatUsd(Number(costUsd)), formatMilliseconds(totalMs ?? 0)]);
}

/** "Round 3 of 20 · waiting for approval · 1,204 tokens · $0.01 so far", or "". */
export function progressLabel({ step: round, blocks }: Pick<MessageView, "step" | "blocks">, isOverdue: (block: Block) => boolean = () => false): string {
  const waiting = blocks.some(({ block }) => block.type === "tool" && block.state === "blocked" && !isOverdue(block)) && m.waiting_for_approval_inline();
  const label = joinParts([stepOf({ step: round, blocks }), waiting, usageSoFar(round)]);
  return label.slice(0, 1).toUpperCase() + label.slice(1);
}

function usageSoFar(round: MessageView["step"]): string | null {
  const { usage, costUsd } = round ?? {};
  const tokens = usage && m.tokens_count({ count: usage.inputTokens + usage.outputTokens });
  const parts = [tokens, costUsd && formatUsd(Number(costUsd))].filter(Boolean);
  return parts.length > 0 ? m.so_far({ usage: joinParts(parts) }) : null;
}

/** The delivery status of a message of one's own; null once it is sent. */
export function deliveryLabel(standing: MessageDisplayStatus, trouble: MessageError | null, attempt = 1): string | null {
  if (standing === "sending") return attempt > 1 ? m.retrying() : m.sending();
  if (standing === "queued") return m.will_be_sent_when_youre_back_online();
  return standing === "failed" ? m.not_sent({ reason: trouble?.reason ?? "" }).trim() : null;
}

/** Blocks that are shown together: consecutive tool calls with their step, which is 0 if they have several, or one block of another kind. */
type BlockGroup = { key: string; step: number; tools: readonly BlockView[] } | { key: string; view: BlockView };

/** The groups of an answer, without text that did not fit the requested format. */
export function groupBlocks(blocks: readonly BlockView[]): BlockGroup[] {
  const groups: { key: string; step: number; tools: BlockView[]; view?: BlockView }[] = [];
  for (const view of withoutReplacedText(blocks, ({ block }) => block)) {
    const last = groups.at(-1);
    const step = view.block.type === "tool" ? (view.block.step ?? 0) : -1;
    if (step < 0) groups.push({ key: view.key, step, tools: [], view });
    else if (last && last.view === undefined) {
      last.tools.push(view);
      if (last.step !== step) last.step = 0;
    } else groups.push({ key: view.key, step, tools: [view] });
  }
  return groups.map(({ key, step, tools, view }) => (view ? { key, view } : { key, step, tools }));
}

/** `isNamed`: the person has given the name. */
type Person = { id: string; name: string; isNamed: boolean; typing: boolean };

/** The other people in the chat, with the names that are shown. */
export function peopleFrom(participants: readonly Participant[]): Person[] {
  return participants.map(({ id, name, state }) => ({ id, name: name ?? m.guest(), isNamed: name !== undefined, typing: state.typing === true }));
}

/** "Ada is typing…", or "". */
export function typingLabel(present: readonly Person[]): string {
  const [first, second, ...rest] = present.filter(({ typing }) => typing).map(({ name }) => name);
  if (first === undefined) return "";
  if (second === undefined) return m.first_is_typing({ first });
  return rest.length > 0 ? m.people_typing({ count: rest.length + 2 }) : m.first_and_second_are_typing({ first, second });
}
