// What a card says of a call, in few words.

import type { ToolBlock, ToolState } from "../khala/frames.ts";

const LONGEST_ARGS = 60;
const MOST_NAMES = 4;
/** More of a value than this can't be needed for a line of 60 characters. */
const ENOUGH = 2_000;
const UNSEEN = /[\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

export const WORDS: Readonly<Record<ToolState, string>> = {
  queued: "queued",
  running: "running",
  completed: "done",
  failed: "failed",
  blocked: "needs approval",
  cancelled: "cancelled",
};

/** Shapes that tell the states apart without colour, each a line in 20 by 20. */
export const SHAPES: Readonly<Record<ToolState, string>> = {
  queued: "M6 10h.01M10 10h.01M14 10h.01",
  running: "M10 3a7 7 0 1 1-7 7",
  completed: "M4.5 10.5 8.5 14.5 15.5 6",
  failed: "M5.5 5.5l9 9M14.5 5.5l-9 9",
  blocked: "M10 3.5 17 16H3zM10 8.5v3.2M10 13.9v.01",
  cancelled: "M4 10a6 6 0 1 0 12 0 6 6 0 1 0-12 0M5.8 5.8l8.4 8.4",
};

/** Whether nothing more will come of a call. */
export function hasEnded(state: ToolState): boolean {
  return state === "completed" || state === "failed" || state === "cancelled";
}

const letters = new Intl.Segmenter("en", { granularity: "grapheme" });

/** The text on one line of at most `most` characters as people count them, an ellipsis among them. */
function oneLine(text: string, most: number): string {
  const line = text.slice(0, ENOUGH).replace(/[\s\p{Cc}\p{Cs}\p{Cn}]+/gu, " ").replace(UNSEEN, "").trim();
  const found: string[] = [];
  for (const { segment } of letters.segment(line)) {
    if (found.length === most) return `${found.slice(0, most - 1).join("")}…`;
    found.push(segment);
  }
  return found.join("");
}

/** What a call is given, on one line of at most 60 characters. */
export function argsLine(args: Readonly<Record<string, unknown>> | undefined): string {
  const entries = Object.entries(args ?? {}).slice(0, LONGEST_ARGS);
  const shown = (value: unknown) => (typeof value === "string" ? value.slice(0, ENOUGH) : JSON.stringify(value));
  const [only] = entries;
  const line = entries.length === 1 && only ? shown(only[1]) : entries.map(([name, value]) => `${name}: ${shown(value)}`).join(", ");
  return oneLine(line, LONGEST_ARGS);
}

/** As `argsLine`, of a call whose arguments may be too long for its message. */
export function givenLine({ args, argsBlob }: ToolBlock): string {
  return argsBlob ? oneLine(argsBlob.preview ?? "", LONGEST_ARGS) : argsLine(args);
}

/** "todo_add ×30, glob": which tools were called, at most four of them, in the order of `counts`. */
export function namesOf(counts: ReadonlyMap<string, number>): string {
  const names: string[] = [];
  for (const [name, count] of counts) {
    if (names.length === MOST_NAMES) return `${names.join(", ")} …`;
    names.push(count > 1 ? `${name} ×${count}` : name);
  }
  return names.join(", ");
}

/** "3 of 4 done, 1 failed": how the calls of a step stand. */
export function standingOf(counts: Readonly<Record<ToolState, number>>, all: number): string {
  const others = (["failed", "cancelled", "blocked"] as const)
    .filter((state) => counts[state] > 0)
    .map((state) => `, ${counts[state]} ${state === "blocked" ? "waiting" : state}`);
  return `${counts.completed} of ${all} done${others.join("")}`;
}

/** "840 ms", "1.2 s" */
export function milliseconds(value: number): string {
  return value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
}

/** "7 s", "2 min 5 s", "3 h 10 min", "40 days": whole seconds of `value` (ms), none if it is negative. */
export function duration(value: number): string {
  const seconds = Math.max(0, Math.floor(value / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

/** What stands at the right of a card; `startedAt` and `now` in ms of one clock. */
export function timeWords(block: ToolBlock, startedAt: number, now: number): string {
  const { state, durationMs = 0 } = block;
  const took = durationMs > 0 ? milliseconds(durationMs) : "";
  if (state === "running") return `running ${duration(now - startedAt)}`;
  if (state === "completed") return took || WORDS.completed;
  if (state === "failed") return took ? `failed · ${took}` : WORDS.failed;
  return WORDS[state];
}

/** "840 bytes", "1.2 MB" */
export function size(bytes: number): string {
  if (bytes < 1000) return `${bytes} ${bytes === 1 ? "byte" : "bytes"}`;
  const [unit, per] = bytes < 1e6 ? (["kB", 1e3] as const) : bytes < 1e9 ? (["MB", 1e6] as const) : (["GB", 1e9] as const);
  return `${(bytes / per).toFixed(1)} ${unit}`;
}

/** "12 Mar 2026, 14:05" */
export function moment(time: string): string {
  return new Date(time).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

/** JSON in which what would show as nothing, or turn the text around, is escaped: who approves of a call has to see it. */
export function seen(json: string): string {
  return json.replace(UNSEEN, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** A value as JSON to be read and edited by people. */
export function pretty(value: unknown): string {
  return seen(JSON.stringify(value, null, 2));
}
