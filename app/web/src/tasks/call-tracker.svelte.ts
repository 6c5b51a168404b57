// The calls of a step, each of which is heard by itself: a change costs the same, however many there are.

import { untrack } from "svelte";
import type { Block } from "../khala/frames.ts";
import type { BlockView } from "../state/page-model.ts";
import { LruCache } from "./lru-cache.ts";
import { CallCounts } from "./call-counts.ts";
import { stepStatus, toolNames } from "./call-labels.ts";
import { formatMilliseconds } from "../state/format.ts";

/** Of so many calls it is remembered when they were first seen to run. */
const MAX_TRACKED_CALLS = 2_000;

type On = { asked: (toolCallId: string, digest: string, tool: string) => void };

export class CallTracker {
  readonly #counts = new CallCounts();
  #tracked = new WeakSet<BlockView>();
  #stops: (() => void)[] = [];
  readonly #startSeenAt = new LruCache<string, number>(MAX_TRACKED_CALLS);
  readonly #on: On;
  /** A new one whenever a number has changed. */
  #now = $state.raw({ tally: this.#counts });

  /** `on.asked` is called whenever a call is found to wait for approval. */
  constructor(on: On) {
    this.#on = on;
  }

  /** Hear these from now on; those that are heard already go on. */
  track(views: readonly BlockView[]): void {
    for (const view of views) {
      if (this.#tracked.has(view)) continue;
      this.#tracked.add(view);
      this.#update(view.block);
      this.#stops.push(onBlockChange(view, (block) => this.#update(block)));
    }
  }

  stop(): void {
    for (const stop of this.#stops) stop();
    this.#stops = [];
    this.#tracked = new WeakSet();
  }

  get hasEnded(): boolean {
    return this.#now.tally.hasEnded;
  }

  /** "3 of 4 done, 1 failed · 1.2 s" */
  get label(): string {
    const { counts, all, hasEnded, longest } = this.#now.tally;
    return [stepStatus(counts, all), hasEnded && longest > 0 && formatMilliseconds(longest)].filter(Boolean).join(" · ");
  }

  /** From 0 to 1: how many have ended. */
  get progress(): number {
    return this.#now.tally.ended / Math.max(1, this.#now.tally.all);
  }

  get toolNames(): string {
    return toolNames(this.#now.tally.tools);
  }

  /** When (ms of our clock) a call was first seen to run; undefined if it never was. */
  startSeenAt(toolCallId: string): number | undefined {
    return this.#startSeenAt.get(toolCallId);
  }

  #update(block: Block): void {
    if (block.type !== "tool") return;
    const { toolCallId, state, tool, digest = "" } = block;
    if (state === "running" && this.#startSeenAt.get(toolCallId) === undefined) this.#startSeenAt.set(toolCallId, Date.now());
    if (state === "blocked") this.#on.asked(toolCallId, digest, tool);
    if (this.#counts.put(block)) this.#now = { tally: this.#counts };
  }
}

function onBlockChange(view: BlockView, hear: (block: Block) => void): () => void {
  return $effect.root(() => {
    $effect.pre(() => {
      const { block } = view;
      untrack(() => hear(block));
    });
  });
}
