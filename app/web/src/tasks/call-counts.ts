// Counts the calls of a group by state and by tool, incrementally.

import type { ToolBlock, ToolState } from "@khala/client";
import { hasEnded, isDenied, isExpired } from "./call-labels.ts";
import { nameInSentence } from "./call-sentence.ts";
import type { DoneCalls } from "./call-sentence.ts";

type Counts = Record<ToolState, number>;
type Call = { state: ToolState; tool: string; denied: boolean; expired: boolean; name: string };

/** Counts of calls by state and by tool. Each update takes constant time. */
export class CallCounts {
  readonly counts: Counts = { queued: 0, running: 0, completed: 0, failed: 0, blocked: 0, cancelled: 0 };
  /** By tool name, in the order of the first call. */
  readonly tools = new Map<string, number>();
  readonly #done = new Map<string, { count: number; names: Map<string, number> }>();
  /** Of the failed calls, those that a person denied. */
  denied = 0;
  /** Of the failed calls, those that nobody approved in time. */
  expired = 0;
  readonly #calls = new Map<string, Call>();
  /** The duration of the longest call of each step, in ms. */
  readonly #longest = new Map<number, number>();
  /** Calls that run, in the order in which they began to, and those that will. */
  readonly #running = new Map<string, ToolBlock>();
  readonly #queued = new Map<string, ToolBlock>();
  #ended = 0;
  #took = 0;

  get all(): number {
    return this.#calls.size;
  }

  get ended(): number {
    return this.#ended;
  }

  get hasEnded(): boolean {
    return this.#ended === this.#calls.size;
  }

  hasEndedCall(toolCallId: string): boolean {
    const call = this.#calls.get(toolCallId);
    return call !== undefined && hasEnded(call.state);
  }

  /** The completed calls by tool name, in the order of the first call. */
  get done(): ReadonlyMap<string, DoneCalls> {
    return new Map([...this.tools.keys()].flatMap((tool) => {
      const done = this.#done.get(tool);
      return done ? [[tool, done] as const] : [];
    }));
  }

  /** The call that has run for the longest time; if none runs, the first one that is queued. */
  get current(): ToolBlock | undefined {
    return this.#running.values().next().value ?? this.#queued.values().next().value;
  }

  /** How long the calls took, in ms: of each step its longest, because its calls run in parallel. 0 if some were cancelled, because it is unknown then. */
  get took(): number {
    return this.counts.cancelled > 0 ? 0 : this.#took;
  }

  /** Update a call. Returns whether any count has changed. */
  put(block: ToolBlock): boolean {
    const { toolCallId, state, tool } = block;
    const [denied, expired] = [isDenied(block), isExpired(block)];
    const before = this.#calls.get(toolCallId);
    const isLonger = this.#putDuration(block);
    if (before?.state === state && before.tool === tool && before.denied === denied && before.expired === expired) return isLonger;
    if (before) this.#take(before);
    putIf(state === "running", this.#running, block);
    putIf(state === "queued", this.#queued, block);
    const call = { state, tool, denied, expired, name: nameInSentence(block) };
    this.#calls.set(toolCallId, call);
    this.denied += denied ? 1 : 0;
    this.expired += expired ? 1 : 0;
    this.counts[state] += 1;
    // A tool that stays keeps its place in the order.
    if (before?.tool !== tool) {
      this.tools.set(tool, (this.tools.get(tool) ?? 0) + 1);
      if (before) this.#takeTool(before.tool);
    }
    if (state === "completed") this.#putDone(call);
    this.#ended += hasEnded(state) ? 1 : 0;
    return true;
  }

  #putDuration({ step = 0, durationMs = 0 }: ToolBlock): boolean {
    const longest = this.#longest.get(step) ?? 0;
    if (durationMs <= longest) return false;
    this.#longest.set(step, durationMs);
    this.#took += durationMs - longest;
    return true;
  }

  #putDone({ tool, name }: Call): void {
    const done = this.#done.get(tool) ?? { count: 0, names: new Map<string, number>() };
    this.#done.set(tool, done);
    done.count += 1;
    done.names.set(name, (done.names.get(name) ?? 0) + 1);
  }

  #take(call: Call): void {
    const { state, denied, expired } = call;
    this.denied -= denied ? 1 : 0;
    this.expired -= expired ? 1 : 0;
    this.counts[state] -= 1;
    if (state === "completed") this.#takeDone(call);
    this.#ended -= hasEnded(state) ? 1 : 0;
  }

  #takeDone({ tool, name }: Call): void {
    const done = this.#done.get(tool);
    if (done === undefined) return;
    done.count -= 1;
    if (done.count === 0) this.#done.delete(tool);
    takeOne(done.names, name);
  }

  #takeTool(tool: string): void {
    takeOne(this.tools, tool);
  }
}

function putIf(isIn: boolean, calls: Map<string, ToolBlock>, block: ToolBlock): void {
  if (isIn) calls.set(block.toolCallId, block);
  else calls.delete(block.toolCallId);
}

function takeOne(counts: Map<string, number>, key: string): void {
  const left = (counts.get(key) ?? 0) - 1;
  if (left > 0) counts.set(key, left);
  else counts.delete(key);
}
