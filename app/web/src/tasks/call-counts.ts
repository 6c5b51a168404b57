// How the calls of a step stand, counted as they change and never by going through all of them.

import type { ToolBlock, ToolState } from "../khala/frames.ts";
import { hasEnded } from "./call-labels.ts";

type Counts = Record<ToolState, number>;

/** Counts of calls by their state and by their tool; each change of a call costs the same, however many there are. */
export class CallCounts {
  readonly counts: Counts = { queued: 0, running: 0, completed: 0, failed: 0, blocked: 0, cancelled: 0 };
  /** By name, in the order in which they were first called. */
  readonly tools = new Map<string, number>();
  readonly #calls = new Map<string, { state: ToolState; tool: string }>();
  #ended = 0;
  #longest = 0;

  get all(): number {
    return this.#calls.size;
  }

  get ended(): number {
    return this.#ended;
  }

  get hasEnded(): boolean {
    return this.#ended === this.#calls.size;
  }

  /** How long (ms) calls took that ran side by side: as long as the longest of them. Nobody knows it if some were cancelled: 0. */
  get longest(): number {
    return this.counts.cancelled > 0 ? 0 : this.#longest;
  }

  /** Take a call as it is now; whether that changes any number. */
  put({ toolCallId, state, tool, durationMs = 0 }: ToolBlock): boolean {
    const before = this.#calls.get(toolCallId);
    const isSame = before?.state === state && before.tool === tool && durationMs <= this.#longest;
    if (isSame) return false;
    if (before) this.#take(before);
    this.#calls.set(toolCallId, { state, tool });
    this.counts[state] += 1;
    this.tools.set(tool, (this.tools.get(tool) ?? 0) + 1);
    this.#ended += hasEnded(state) ? 1 : 0;
    this.#longest = Math.max(this.#longest, durationMs);
    return true;
  }

  #take({ state, tool }: { state: ToolState; tool: string }): void {
    this.counts[state] -= 1;
    this.#ended -= hasEnded(state) ? 1 : 0;
    const left = (this.tools.get(tool) ?? 0) - 1;
    if (left > 0) this.tools.set(tool, left);
    else this.tools.delete(tool);
  }
}
