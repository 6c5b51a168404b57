// A run as a graph: its steps one after the other, and the parallel calls of each.

import type { Block, ToolBlock, ToolState } from "@khala/client";

import { formatMilliseconds, joinParts } from "../state/format.ts";
import { CallCounts } from "../tasks/call-counts.ts";
import { callArgumentsLine, isDenied, outcomeLabel, stateOf, stepStatus, timeLabel } from "../tasks/call-labels.ts";

export type GraphState = ToolState | "denied";

export interface GraphCall {
  readonly id: string;
  readonly tool: string;
  readonly state: GraphState;
  /** The state in words, and how long the call took or has been running: "failed · 20.0 s", "running 7 s". */
  readonly status: string;
  /** The arguments and the outcome, each on one line. */
  readonly details: readonly string[];
  readonly label: string;
  readonly icon: string;
}

export interface GraphStep {
  readonly step: number;
  readonly state: ToolState;
  /** "3 of 4 done, 1 failed" */
  readonly status: string;
  readonly calls: readonly GraphCall[];
}

/** A state that calls of the run have, with its icon, its label, and how many have it. */
export interface GraphLegend {
  readonly state: GraphState;
  readonly label: string;
  readonly icon: string;
  readonly count: number;
}

/** When a call was first seen running, in ms, and the time now, both of one clock. */
export type GraphClock = { readonly now: number; readonly startedAt: (toolCallId: string) => number };

/** Further calls are not shown: a page of thousands of calls is unreadable. */
export const MAX_SHOWN_CALLS = 1000;

/** The steps of a run in order of appearance, from the blocks of its answer. A call without a step belongs to the first one. */
export function graphSteps(blocks: readonly { readonly block: Block }[], clock: GraphClock): GraphStep[] {
  const steps = new Map<number, ToolBlock[]>();
  for (const call of callsOf(blocks)) {
    const step = call.step ?? 1;
    const known = steps.get(step);
    if (known) known.push(call);
    else steps.set(step, [call]);
  }
  return [...steps].map(([step, calls]) => ({ step, state: stateOfStep(calls), status: statusOf(calls), calls: calls.map((call) => graphCall(call, clock)) }));
}

/** The states that the calls have, in order of appearance. */
export function graphLegend(steps: readonly GraphStep[]): GraphLegend[] {
  const found = new Map<GraphState, GraphLegend>();
  for (const { state, label, icon } of steps.flatMap(({ calls }) => calls)) found.set(state, { state, label, icon, count: (found.get(state)?.count ?? 0) + 1 });
  return [...found.values()];
}

/** The index that an arrow key moves to, among `count` nodes; null for other keys. */
export function indexAfterKey(key: string, index: number, count: number, isRightToLeft: boolean): number | null {
  const [forward, back] = isRightToLeft ? ["ArrowLeft", "ArrowRight"] : ["ArrowRight", "ArrowLeft"];
  if (key === forward || key === "ArrowDown") return Math.min(count - 1, index + 1);
  if (key === back || key === "ArrowUp") return Math.max(0, index - 1);
  if (key === "Home") return 0;
  return key === "End" ? count - 1 : null;
}

function callsOf(blocks: readonly { readonly block: Block }[]): ToolBlock[] {
  return blocks.flatMap(({ block }) => (block.type === "tool" ? [block] : [])).slice(0, MAX_SHOWN_CALLS);
}

function graphCall(call: ToolBlock, { now, startedAt }: GraphClock): GraphCall {
  const { label, icon } = stateOf(call);
  const took = formatMilliseconds(call.durationMs ?? 0);
  const status = call.state === "running" ? timeLabel(call, Math.min(now, startedAt(call.toolCallId)), now) : joinParts([label, took]);
  return { id: call.toolCallId, tool: call.tool, state: isDenied(call) ? "denied" : call.state, status, details: [callArgumentsLine(call), outcomeLabel(call)].filter(Boolean), label, icon };
}

function statusOf(calls: readonly ToolBlock[]): string {
  const counts = new CallCounts();
  for (const call of calls) counts.put(call);
  return stepStatus({ ...counts.counts, denied: counts.denied }, counts.all);
}

/** The state of a step: running or blocked as long as one of its calls is, failed if none completed. */
function stateOfStep(calls: readonly ToolBlock[]): ToolState {
  if (calls.some(({ state }) => state === "running" || state === "queued")) return "running";
  if (calls.some(({ state }) => state === "blocked")) return "blocked";
  return calls.find(({ state }) => state === "completed")?.state ?? calls.at(-1)?.state ?? "queued";
}
