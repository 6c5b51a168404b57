// The rows of a run's timeline, of the events of its history.

import { formatBytes, formatCount, formatDuration, formatTime, formatUsd, humanize, NOTHING, shortId } from "./format.ts";
import type { RunEvent, ConsoleRunHistory } from "./types.ts";

/** Times in ms since the run was queued. `isOpen`: it has not ended yet. */
export interface TimelineBar {
  readonly kind: string;
  readonly startMs: number;
  readonly endMs: number;
  readonly isOpen: boolean;
}

export interface TimelineRow {
  readonly key: string;
  readonly kind: string;
  readonly title: string;
  readonly note: string;
  readonly level: number;
  readonly bars: readonly TimelineBar[];
  readonly duration: string;
  readonly facts: readonly (readonly [string, string])[];
}

export interface Timeline {
  readonly rows: readonly TimelineRow[];
  readonly spanMs: number;
  /** How long the run waited for its first executor, or has waited so far. */
  readonly queuedMs: number;
}

const NOTICES: Readonly<Record<string, string>> = {
  resumed: "Taken over by another executor",
  model_switched: "Switched to another model",
  context_shrunk: "Asked again with a shorter context",
};

/** The rows in order of time; `now` (ms since the epoch) is the end of what has not ended. */
export function timelineOf({ run, timeline }: ConsoleRunHistory, now: number): Timeline {
  const starts = timeline.filter(({ kind }) => kind !== "queued" && kind !== "cancel_requested").map(startOf);
  const earliest = starts.length === 0 ? null : Math.min(...starts);
  const origin = Math.min(Date.parse(run.createdAt), earliest ?? Infinity);
  const last = Math.max(Date.parse(run.finishedAt ?? run.createdAt), ...timeline.map(({ at }) => Date.parse(at)));
  const hasEnded = run.finishedAt !== null;
  const end = hasEnded ? last : Math.max(now, last);
  const context: RowContext = { origin, end, hasEnded, begun: run.startedAt === null ? earliest : Date.parse(run.startedAt), steps: stepSpans(timeline, hasEnded ? null : end) };
  const rows = timeline.map((event, index) => rowOf(event, index, context));
  return { rows: rows.toSorted((one, other) => startOfRow(one) - startOfRow(other) || one.level - other.level), spanMs: end - origin, queuedMs: (context.begun ?? end) - Date.parse(run.createdAt) };
}

interface StepSpan {
  readonly event: RunEvent;
  readonly start: number;
  readonly end: number;
  readonly isOpen: boolean;
}

/** Times in ms since the epoch. */
interface RowContext {
  readonly origin: number;
  readonly end: number;
  readonly hasEnded: boolean;
  /** When the first executor began, null while none has. */
  readonly begun: number | null;
  readonly steps: readonly StepSpan[];
}

function startOf({ startedAt, at }: RunEvent): number {
  return Date.parse(startedAt ?? at);
}

function startOfRow({ bars: [bar] }: TimelineRow): number {
  return bar?.startMs ?? 0;
}

/**
 * A step is recorded when its model call has ended. It lasts from the beginning of that call to the end of its last tool call,
 * or to `now` if it waits for an approval.
 */
function stepSpans(timeline: readonly RunEvent[], now: number | null): StepSpan[] {
  const events = timeline.filter(({ kind }) => kind === "step");
  const begins = events.map((event) => {
    const call = timeline.findLast(({ kind, at }) => kind === "model" && Date.parse(at) <= Date.parse(event.at));
    return call === undefined ? Date.parse(event.at) : startOf(call);
  });
  return events.map((event, index) => {
    const next = begins[index + 1] ?? Infinity;
    const inside = timeline.filter((one) => (one.kind === "tool" || one.kind === "approval") && startOf(one) >= Date.parse(event.at) && startOf(one) < next);
    const isOpen = now !== null && inside.some(({ kind, outcome }) => kind === "approval" && outcome === "pending");
    const end = isOpen ? now : Math.max(Date.parse(event.at), ...inside.map((one) => Date.parse(one.decidedAt ?? one.at)));
    return { event, start: begins[index] ?? end, end, isOpen };
  });
}

function rowOf(event: RunEvent, index: number, context: RowContext): TimelineRow {
  const bar = barOf(event, context);
  const length = bar.endMs - bar.startMs;
  const isCall = event.kind === "model" || event.kind === "tool" || event.kind === "approval";
  const start = startOf(event);
  return {
    key: `${event.kind}-${index}`,
    kind: bar.kind,
    ...wordsOf(event),
    level: isCall && context.steps.some((step) => start >= step.start && start <= step.end) ? 1 : 0,
    bars: [bar],
    duration: length > 0 || isCall ? formatDuration(length) : `at ${formatDuration(bar.startMs)}`,
    facts: factsOf(event),
  };
}

function barOf(event: RunEvent, { origin, end, hasEnded, begun, steps }: RowContext): TimelineBar {
  const at = Date.parse(event.at) - origin;
  const bar = (kind: string, startMs: number, endMs: number, isOpen = false) => ({ kind, startMs, endMs: Math.max(startMs, endMs), isOpen });
  switch (event.kind) {
    case "queued":
      return bar("queue", at, (begun ?? end) - origin, begun === null && !hasEnded);
    case "model":
    case "tool":
      return bar(isFailure(event) ? "error" : event.kind, event.startedAt === null ? at : Date.parse(event.startedAt) - origin, at);
    case "approval":
      return approvalBar(event, at, end - origin, hasEnded);
    case "finished":
      return bar(event.outcome === "error" ? "error" : "end", at, at);
    case "error":
      return bar("error", at, at);
    case "step": {
      const step = steps.find((one) => one.event === event);
      return step === undefined ? bar("execution", at, at) : bar("execution", step.start - origin, step.end - origin, step.isOpen);
    }
    default:
      return bar("notice", at, at);
  }
}

function approvalBar(event: RunEvent, at: number, end: number, hasEnded: boolean): TimelineBar {
  const decided = event.decidedAt === null ? null : at + Date.parse(event.decidedAt) - Date.parse(event.at);
  const isOpen = decided === null && event.outcome === "pending" && !hasEnded;
  return { kind: "approval", startMs: at, endMs: Math.max(at, decided ?? (isOpen ? end : at)), isOpen };
}

/** Reasons with which a model ends a reply in the ordinary way. */
const GOOD_OUTCOMES = ["stop", "length", "tool_calls", "tool-calls", "ok", "content_filter", "end_turn"];

function isFailure({ kind, outcome }: RunEvent): boolean {
  return outcome !== null && (kind === "tool" ? outcome !== "ok" : !GOOD_OUTCOMES.includes(outcome));
}

function wordsOf(event: RunEvent): { title: string; note: string } {
  const note = (...words: readonly string[]) => words.filter(Boolean).join(" · ");
  const outcome = event.outcome === null || event.outcome === "ok" ? "" : humanize(event.outcome);
  switch (event.kind) {
    case "queued":
      return { title: "In the queue", note: "" };
    case "step":
      return { title: `Step ${event.step ?? ""}`, note: "" };
    case "model":
      return { title: event.model ?? "Model call", note: note(event.provider ?? "", outcome, event.usd === null ? "" : formatUsd(event.usd)) };
    case "tool":
      return { title: event.tool ?? "Tool call", note: note(event.source ?? "", outcome) };
    case "approval":
      return { title: `Approval of ${event.tool ?? "a tool call"}`, note: note(outcome) };
    case "notice":
      return { title: NOTICES[event.code ?? ""] ?? humanize(event.code ?? "notice"), note: "" };
    case "error":
      return { title: "Error", note: note(humanize(event.code ?? "")) };
    case "cancel_requested":
      return { title: "Cancel requested", note: "" };
    case "finished":
      return { title: "Ended", note: outcome };
  }
}

function factsOf(event: RunEvent): [string, string][] {
  const count = (value: number | null) => (value === null ? null : formatCount(value));
  const facts: [string, string | null][] = [
    ["Recorded at", formatTime(event.at)],
    ["Started at", event.startedAt && formatTime(event.startedAt)],
    ["Duration", event.durationMs === null ? null : formatDuration(event.durationMs)],
    ["First token after", event.firstTokenMs === null ? null : formatDuration(event.firstTokenMs)],
    ["Outcome", event.outcome === null ? null : humanize(event.outcome)],
    ["Code", event.code],
    ["Step", count(event.step)],
    ["Model call", count(event.attempt)],
    ["Model", event.model && [event.provider, event.model].filter(Boolean).join(":")],
    ["Input tokens", event.inputTokens === null ? null : `${formatCount(event.inputTokens)}${event.estimated ? " (estimated)" : ""}`],
    ["Output tokens", count(event.outputTokens)],
    ["Cost", event.usd === null ? null : formatUsd(event.usd)],
    ["Output", event.bytes === null ? null : formatBytes(event.bytes)],
    ["Call", event.toolCallId],
    ["Decided by", event.decidedBy && `Account ${shortId(event.decidedBy)}`],
    ["Decided at", event.decidedAt && formatTime(event.decidedAt)],
    ["Expires at", event.decidedAt === null && event.expiresAt ? formatTime(event.expiresAt) : null],
    ["Record", event.seq === null ? null : `${event.kind === "model" || event.kind === "tool" ? "Receipt" : "Part"} ${event.seq}`],
  ];
  return facts.flatMap(([name, value]) => (value === null || value === "" || value === NOTHING ? [] : [[name, value]]));
}
