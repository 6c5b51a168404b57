// Counts the calls of a step by state and by tool, incrementally.

import type { ToolBlock, ToolState } from "@khala/client";
import { hasEnded, isDenied, isExpired } from "./call-labels.ts";

type Counts = Record<ToolState, number>;
type Call = { state: ToolState; tool: string; denied: boolean; expired: boolean };

/** Counts of calls by state and by tool. Each update takes constant time. */
export class CallCounts {
  readonly counts: Counts = { queued: 0, running: 0, completed: 0, failed: 0, blocked: 0, cancelled: 0 };
  /** By tool name, in the order of the first call. */
  readonly tools = new Map<string, number>();
  /** Of the failed calls, those that a person denied. */
  denied = 0;
  /** Of the failed calls, those that nobody approved in time. */
  expired = 0;
  readonly #calls = new Map<string, Call>();
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

  /** The duration of the longest call, in ms, because calls run in parallel. 0 if some were cancelled, because it is unknown then. */
  get longest(): number {
    return this.counts.cancelled > 0 ? 0 : this.#longest;
  }

  /** Update a call. Returns whether any count has changed. */
  put(block: ToolBlock): boolean {
    const { toolCallId, state, tool, durationMs = 0 } = block;
    const [denied, expired] = [isDenied(block), isExpired(block)];
    const before = this.#calls.get(toolCallId);
    const isSame = before?.state === state && before.tool === tool && before.denied === denied && before.expired === expired && durationMs <= this.#longest;
    if (isSame) return false;
    if (before) this.#take(before);
    this.#calls.set(toolCallId, { state, tool, denied, expired });
    this.denied += denied ? 1 : 0;
    this.expired += expired ? 1 : 0;
    this.counts[state] += 1;
    // A tool that stays keeps its place in the order.
    if (before?.tool !== tool) {
      this.tools.set(tool, (this.tools.get(tool) ?? 0) + 1);
      if (before) this.#takeTool(before.tool);
    }
    this.#ended += hasEnded(state) ? 1 : 0;
    this.#longest = Math.max(this.#longest, durationMs);
    return true;
  }

  #take({ state, denied, expired }: Call): void {
    this.denied -= denied ? 1 : 0;
    this.expired -= expired ? 1 : 0;
    this.counts[state] -= 1;
    this.#ended -= hasEnded(state) ? 1 : 0;
  }

  #takeTool(tool: string): void {
    const left = (this.tools.get(tool) ?? 0) - 1;
    if (left > 0) this.tools.set(tool, left);
    else this.tools.delete(tool);
  }
}
