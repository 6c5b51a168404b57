// Tracks the calls of a group. Each call is observed by itself, so that an update takes constant time.

import { untrack } from "svelte";
import { SvelteMap, SvelteSet } from "svelte/reactivity";
import type { Block, ToolBlock } from "@khala/client";
import type { BlockView } from "../state/page-model.ts";
import { LruCache } from "./lru-cache.ts";
import { CallCounts } from "./call-counts.ts";
import { asksQuestion, endedStatus, stepStatus, toolNames } from "./call-labels.ts";
import { doingSentence, doneSentence } from "./call-sentence.ts";
import { formatMilliseconds, joinParts } from "../state/format.ts";
import { isOverdue } from "../state/time-left.ts";

/** The number of calls whose start is remembered. */
const MAX_TRACKED_CALLS = 2_000;

type On = { asked: (toolCallId: string, digest: string, tool: string) => void };

export class CallTracker {
  readonly #counts = new CallCounts();
  readonly #stops = new SvelteMap<BlockView, () => void>();
  readonly #startSeenAt = new LruCache<string, number>(MAX_TRACKED_CALLS);
  readonly #on: On;
  /** Calls that wait for approval, by their ids. */
  readonly #waiting = new SvelteMap<string, ToolBlock>();
  /** The ids of calls that ask the person something. */
  readonly #questions = new SvelteSet<string>();
  /** Replaced whenever a count changes, to trigger an update. */
  #now = $state.raw({ tally: this.#counts });

  /** `on.asked` is called whenever a call needs approval. */
  constructor(on: On) {
    this.#on = on;
  }

  /**
   * Track these calls as well; those that are tracked already stay tracked.
   *
   * Call it in an effect that runs whenever there are more calls. Svelte detaches the effects that an earlier run has
   * created, and forgets those that were due, so calls that have not ended are observed anew.
   */
  track(views: readonly BlockView[]): void {
    for (const view of views) {
      const stop = this.#stops.get(view);
      if (stop && view.block.type === "tool" && this.#counts.hasEndedCall(view.block.toolCallId)) continue;
      stop?.();
      this.#update(view.block);
      this.#stops.set(view, onBlockChange(view, (block) => this.#update(block)));
    }
  }

  stop(): void {
    for (const stop of this.#stops.values()) stop();
    this.#stops.clear();
  }

  get hasEnded(): boolean {
    return this.#now.tally.hasEnded;
  }

  /** "Reading notes.md…" while a call runs or is queued, otherwise what the completed calls did; the tools if there is none. */
  get title(): string {
    const { current, done, tools } = this.#now.tally;
    if (current !== undefined) return doingSentence(current);
    return doneSentence(done) || toolNames(tools);
  }

  /** "3 of 4 done, 1 failed" while calls run; "1 failed · 1.2 s" when all have ended, without what is done: the title has it. */
  get label(): string {
    const { counts, denied, expired, all, hasEnded, took } = this.#now.tally;
    const overdue = [...this.#waiting.values()].filter(isOverdue).length;
    const shown = { ...counts, blocked: counts.blocked - overdue, failed: counts.failed + overdue, denied, expired: expired + overdue };
    return hasEnded ? joinParts([endedStatus(shown), formatMilliseconds(took)]) : stepStatus(shown, all);
  }

  /** Whether a call waits for the person: for an approval that has not expired, or for an answer. */
  get asksPerson(): boolean {
    return this.#questions.size > 0 || this.waiting.length > 0;
  }

  /** Whether a call has failed by itself: nobody denied it or let it expire. */
  get hasFailed(): boolean {
    const { counts, denied, expired } = this.#now.tally;
    return counts.failed > denied + expired;
  }

  /** The shares of calls that are done, and of those that have ended in any way, from 0 to 1. */
  get progress(): { done: number; ended: number } {
    const { counts, ended, all } = this.#now.tally;
    return { done: counts.completed / Math.max(1, all), ended: ended / Math.max(1, all) };
  }

  /** The calls that wait for approval, in the order in which they began to. */
  get waiting(): readonly ToolBlock[] {
    return [...this.#waiting.values()].filter((block) => !isOverdue(block));
  }

  /** When a call was first seen running, in ms since the epoch on this clock; undefined if it never was. */
  startSeenAt(toolCallId: string): number | undefined {
    return this.#startSeenAt.get(toolCallId);
  }

  #update(block: Block): void {
    if (block.type !== "tool") return;
    const { toolCallId, state, tool, digest = "" } = block;
    if (state === "running" && this.#startSeenAt.get(toolCallId) === undefined) this.#startSeenAt.set(toolCallId, Date.now());
    if (state === "blocked") this.#waiting.set(toolCallId, block);
    else this.#waiting.delete(toolCallId);
    if (asksQuestion(block)) this.#questions.add(toolCallId);
    else this.#questions.delete(toolCallId);
    if (state === "blocked" && !isOverdue(block)) this.#on.asked(toolCallId, digest, tool);
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
