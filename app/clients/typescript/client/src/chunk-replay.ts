// Leaves out the chunks of a replayed stream that a chat has already. The server makes the same chunks of the same parts, except
// that it may cut text in other places.

import type { UIMessageChunk } from "ai";

export class ReplayFilter {
  /** The number of equal chunks, or of characters of a text, that were passed on. */
  readonly #passed = new Map<string, number>();
  /** The same in the current replay. */
  readonly #replayed = new Map<string, number>();
  #messageId: string | null = null;

  /** The id of the answer, once it is known. */
  get messageId(): string | null {
    return this.#messageId;
  }

  /** A replay begins. */
  restart(): void {
    this.#replayed.clear();
  }

  /** The chunk, or the part of its text, that the chat does not have; null if it has all of it. Throws if the answer is another one. */
  take(chunk: UIMessageChunk): UIMessageChunk | null {
    if (chunk.type === "start") this.#begin(chunk.messageId ?? null);
    if ("transient" in chunk && chunk.transient) return chunk;
    const text = textOf(chunk);
    const key = text === null ? keyOf(chunk) : `${chunk.type} ${text.id}`;
    const [from, passed] = [this.#replayed.get(key) ?? 0, this.#passed.get(key) ?? 0];
    const to = from + (text === null ? 1 : text.delta.length);
    this.#replayed.set(key, to);
    if (to <= passed) return null;
    this.#passed.set(key, to);
    return text === null || passed <= from ? chunk : { ...chunk, [text.field]: text.delta.slice(passed - from) };
  }

  #begin(messageId: string | null): void {
    if (this.#messageId !== null && messageId !== this.#messageId) throw new Error("The server has replayed another answer.");
    this.#messageId = messageId;
  }
}

function keyOf(chunk: UIMessageChunk): string {
  return chunk.type === "start" ? "start" : JSON.stringify(chunk);
}

function textOf(chunk: UIMessageChunk): { id: string; field: string; delta: string } | null {
  if (chunk.type === "text-delta" || chunk.type === "reasoning-delta") return { id: chunk.id, field: "delta", delta: chunk.delta };
  if (chunk.type === "tool-input-delta") return { id: chunk.toolCallId, field: "inputTextDelta", delta: chunk.inputTextDelta };
  return null;
}
