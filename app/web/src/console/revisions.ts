// The positions of the scrubber: at which revisions of a thread something happened, and what.

import { formatTime } from "./format.ts";
import type { RevisionItem } from "./types.ts";

const MAX_MARKS = 400;
const KINDS: Readonly<Record<string, string>> = {
  "text-delta": "text",
  "reasoning-delta": "reasoning",
  "tool-call": "a tool call",
  "tool-status": "a tool call’s state",
  "tool-result": "a tool’s result",
  step: "a step",
  notice: "a notice",
  error: "an error",
  finish: "its end",
};

/** Revisions for marks, thinned out so that they can be told apart. */
export function marksOf(items: readonly RevisionItem[]): number[] {
  const all = [...new Set(items.flatMap((item) => [item.createdRevision, ...item.changes.map(({ revision }) => revision)]))].sort((one, other) => one - other);
  const every = Math.ceil(all.length / MAX_MARKS);
  return all.filter((_, index) => index % every === 0);
}

/** What the revision did, as far as the positions tell. */
export function wordsOfRevision(items: readonly RevisionItem[], revision: number): string {
  const texts = items.flatMap((item) => {
    const made = item.createdRevision === revision ? [`${item.role === "user" ? "A user’s message was sent" : "An answer was queued"} at ${formatTime(item.createdAt)}`] : [];
    const changes = item.changes.filter((change) => change.revision === revision);
    const written = changes.map(({ at, kinds }) => `An answer got ${joined(kinds)} at ${formatTime(at)}`);
    return [...made, ...written];
  });
  return texts.length === 0 ? "No message changed at this revision." : `${texts.join(". ")}.`;
}

function joined(kinds: readonly string[]): string {
  const ordered = kinds.toSorted((one, other) => Number(one === "finish") - Number(other === "finish"));
  const words = [...new Set(ordered.map((kind) => KINDS[kind] ?? kind))];
  return words.length < 2 ? (words[0] ?? "a change") : `${words.slice(0, -1).join(", ")} and ${words.at(-1) ?? ""}`;
}
