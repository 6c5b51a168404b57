// Short labels of tool calls: arguments, states, times and the status of a step.

import { markInvisible } from "@khala/client";
import type { ToolBlock, ToolState } from "@khala/client";
import { formatDuration, formatMilliseconds, formatNumber, formatUnits } from "../state/format.ts";
import { subjectOf, toolName } from "./tool-labels.ts";
import { m } from "../i18n/messages.ts";

const MAX_LINE_CHARACTERS = 60;
const MAX_TOOL_NAMES = 4;
/** A line of 60 characters never needs more of a value than this. */
const MAX_VALUE_CHARACTERS = 2_000;
/** The server's summary of a denied call that names neither a person nor a reason. */
const PLAIN_DENIAL = /^Denied(?: by (?:somebody|someone|a user))?\.?$/;
/** The server's summary of a call that nobody approved in time. */
const EXPIRY = /^Nobody approved this in time\.$/;

export const STATE_LABELS: Readonly<Record<ToolState, string>> = {
  queued: m.state_queued(),
  running: m.state_running(),
  completed: m.state_done(),
  failed: m.state_failed(),
  blocked: m.state_needs_approval(),
  cancelled: m.state_cancelled(),
};

const OTHERS = { failed: m.count_failed, denied: m.count_denied, expired: m.count_expired, cancelled: m.count_cancelled, blocked: m.count_waiting } as const;
const STATES = Object.keys(STATE_LABELS) as ToolState[];

/** Icons that tell the states apart without colour, each one path in a 20 × 20 box. */
export const STATE_ICONS: Readonly<Record<ToolState, string>> = {
  queued: "M6 10h.01M10 10h.01M14 10h.01",
  running: "M10 3a7 7 0 1 1-7 7",
  completed: "M4.5 10.5 8.5 14.5 15.5 6",
  failed: "M5.5 5.5l9 9M14.5 5.5l-9 9",
  blocked: "M10 3.5 17 16H3zM10 8.5v3.2M10 13.9v.01",
  cancelled: "M4 10a6 6 0 1 0 12 0 6 6 0 1 0-12 0M5.8 5.8l8.4 8.4",
};
const DENIED_ICON = "M4 10a6 6 0 1 0 12 0 6 6 0 1 0-12 0M7 10h6";
const EXPIRED_ICON = "M4 10a6 6 0 1 0 12 0 6 6 0 1 0-12 0M10 6.5V10l2.5 1.5";

/** The label and the icon of a call: one that a person denied, or nobody approved in time, has not failed. */
export function stateOf(block: ToolBlock, isOverdue = false): { label: string; icon: string } {
  if (isDenied(block)) return { label: m.state_denied(), icon: DENIED_ICON };
  if (isExpired(block, isOverdue)) return { label: m.state_expired(), icon: EXPIRED_ICON };
  if (asksQuestion(block) && !isOverdue) return { label: m.state_needs_answer(), icon: STATE_ICONS.blocked };
  return { label: STATE_LABELS[block.state], icon: STATE_ICONS[block.state] };
}

/** Whether the state of a call is final. */
export function hasEnded(state: ToolState): boolean {
  return state === "completed" || state === "failed" || state === "cancelled";
}

const segmenter = new Intl.Segmenter("en", { granularity: "grapheme" });

/** The text on one line of at most `max` graphemes, including the ellipsis if it is cut. Invisible characters are named. */
export function oneLine(text: string, max: number): string {
  const line = markInvisible(text.slice(0, MAX_VALUE_CHARACTERS).replace(/(?:(?!\ufeff)[\s\p{Cs}])+/gu, " ")).trim();
  const graphemes: string[] = [];
  for (const { segment } of segmenter.segment(line)) {
    if (graphemes.length === max) return `${graphemes.slice(0, max - 1).join("")}…`;
    graphemes.push(segment);
  }
  return graphemes.join("");
}

/** The arguments of a call on one line of at most 60 characters. */
export function argumentsLine(args: Readonly<Record<string, unknown>> | undefined): string {
  const entries = Object.entries(args ?? {}).slice(0, MAX_LINE_CHARACTERS);
  const shown = (value: unknown) => (typeof value === "string" ? value.slice(0, MAX_VALUE_CHARACTERS) : JSON.stringify(value));
  const [only] = entries;
  const line = entries.length === 1 && only ? shown(only[1]) : entries.map(([name, value]) => `${name}: ${shown(value)}`).join(", ");
  return oneLine(line, MAX_LINE_CHARACTERS);
}

/** What a call is about, on one line: the subject of a built-in tool, otherwise all arguments, also if they are stored in a blob. */
export function callArgumentsLine({ tool, args, argsBlob }: ToolBlock): string {
  if (argsBlob) return oneLine(argsBlob.preview ?? "", MAX_LINE_CHARACTERS);
  const subject = subjectOf(tool, args);
  return subject === undefined ? argumentsLine(args) : oneLine(subject, MAX_LINE_CHARACTERS);
}

/** "Add to-do ×30, Find files": the tools in words, at most four of them, in the order of `counts`. */
export function toolNames(counts: ReadonlyMap<string, number>): string {
  const names = [...counts].slice(0, MAX_TOOL_NAMES).map(([name, count]) => (count > 1 ? `${toolName(name)} ×${formatNumber(count)}` : toolName(name)));
  return formatUnits(names) + (counts.size > MAX_TOOL_NAMES ? "…" : "");
}

/** As `toolNames`, for these calls. */
export function toolNamesOf(blocks: readonly ToolBlock[]): string {
  const counts = new Map<string, number>();
  for (const { tool } of blocks) counts.set(tool, (counts.get(tool) ?? 0) + 1);
  return toolNames(counts);
}

/** The numbers of calls by state. Of the failed ones a person denied `denied`, and nobody approved `expired` in time. */
type StepCounts = Readonly<Record<ToolState, number>> & { denied?: number; expired?: number };

/** "1 failed, 1 denied": the calls that are not done; empty if all are. */
export function endedStatus(counts: StepCounts): string {
  return formatUnits(otherCounts(counts));
}

/** "3 of 4 done, 1 failed"; "done" for a single call; "waiting for approval" when all calls that are left wait for it. */
export function stepStatus(counts: StepCounts, all: number): string {
  const { denied = 0, expired = 0, blocked, completed } = counts;
  if (blocked > 0 && blocked + completed === all) return m.waiting_for_approval_inline();
  if (all === 1 && denied === 1) return m.state_denied();
  if (all === 1 && expired === 1) return m.state_expired();
  const only = all === 1 ? STATES.find((state) => counts[state] === 1) : undefined;
  if (only) return STATE_LABELS[only];
  return formatUnits([m.calls_done_of({ done: formatNumber(completed), n: formatNumber(all) }), ...otherCounts(counts)]);
}

function otherCounts({ denied = 0, expired = 0, ...counts }: StepCounts): string[] {
  const shown = { ...counts, denied, expired, failed: counts.failed - denied - expired };
  return (["failed", "denied", "expired", "cancelled", "blocked"] as const)
    .filter((state) => shown[state] > 0)
    .map((state) => OTHERS[state]({ count: formatNumber(shown[state]) }));
}

/** How long a call takes or took, and its state unless it is done, which its icon says; `startedAt` and `now` in ms of one clock. */
export function timeLabel(block: ToolBlock, startedAt: number, now: number, isOverdue = false): string {
  const { state, durationMs = 0 } = block;
  const took = formatMilliseconds(durationMs);
  if (isExpired(block, isOverdue)) return m.state_expired();
  if (state === "running") return now - startedAt < 1000 ? STATE_LABELS.running : formatDuration(now - startedAt);
  if (state === "completed") return took;
  if (state !== "failed") return STATE_LABELS[state];
  if (isDenied(block)) return m.state_denied();
  return took ? m.failed_took({ took }) : STATE_LABELS.failed;
}

/** The result of a call in one sentence, or how far a running call is; empty if the time label already says it. */
export function outcomeLabel(block: ToolBlock): string {
  const { state, summary = "", reason = "" } = block;
  if (state === "running") return reason;
  if (!hasEnded(state)) return "";
  if (EXPIRY.test(summary)) return m.expired_without_an_answer();
  return isDenied(block) && PLAIN_DENIAL.test(summary) ? "" : summary;
}

/** Whether a person denied the call: the block has no error code, so the server's summary tells. */
export function isDenied({ state, summary = "" }: ToolBlock): boolean {
  return state === "failed" && /^Denied\b/.test(summary);
}

/** Whether nobody approved the call in time. `isOverdue`: the time has passed, but the server has not ended the call yet. */
export function isExpired({ state, summary = "" }: ToolBlock, isOverdue = false): boolean {
  return state === "failed" ? EXPIRY.test(summary) : state === "blocked" && isOverdue;
}

/** Whether the running call asks the person something. */
export function asksQuestion({ state, digest }: ToolBlock): boolean {
  return state === "running" && digest !== undefined;
}
