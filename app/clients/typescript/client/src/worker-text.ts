// Texts and values in the form in which the server stores them.

import { AgentError, type ModelUsage, type WorkerBlock } from "./worker-types.ts";

/** The bytes of a part. */
export const MAX_PART_BYTES = 4000;
const MAX_SUMMARY_CHARACTERS = 120;

/** The beginning of the text, on one line. */
export function line(text: string): string {
  return text.split(/\s+/).join(" ").slice(0, MAX_SUMMARY_CHARACTERS);
}

/** The bytes of the value as JSON. */
export function bytesOf(value: unknown): number {
  return new TextEncoder().encode(JSON.stringify(value)).length;
}

/** The text without characters that the server cannot store. */
export function storable(text: string): string {
  return text.replace(/\0|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}

/** The text in pieces, each of which fits into a part. A pair of surrogates is not divided. */
export function pieces(text: string): string[] {
  const found: string[] = [];
  for (let at = 0; at < text.length; ) {
    let size = Math.min(text.length - at, MAX_PART_BYTES - 32);
    while (bytesOf(text.slice(at, at + size)) > MAX_PART_BYTES - 32) size = Math.floor(size / 2);
    if (size > 1 && at + size < text.length && /[\ud800-\udbff]/.test(text.charAt(at + size - 1))) size--;
    found.push(text.slice(at, at + size));
    at += size;
  }
  return found;
}

/** The text of the blocks. */
export function textOf(blocks: readonly WorkerBlock[]): string {
  return blocks.map((block) => (block.type === "text" ? (block.text ?? "") : "")).join("");
}

/** The end of the text that is not `written` yet from this place on. Throws if the written text is another one. */
export function unwritten(text: string, written: string, from: number): string {
  const stored = written.slice(from, from + text.length);
  if (text.startsWith(stored)) return text.slice(stored.length);
  throw new AgentError("The answer was interrupted, and could not be continued. Please try again.", "replay_diverged");
}

/** The report of a model call, which may belong to a call of the run. */
export function receiptOf(usage: ModelUsage, toolCallId?: string): Record<string, unknown> {
  const { inputTokens = 0, outputTokens = 0, milliseconds = 0, ...more } = usage;
  const call = toolCallId === undefined ? {} : { toolCallId };
  return { type: "model", usage: { inputTokens, outputTokens }, totalMs: milliseconds, ...more, ...call };
}
