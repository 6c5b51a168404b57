// The calls of a step, each of which is heard by itself: a change costs the same, however many there are.

import { untrack } from "svelte";
import type { Block } from "../khala/frames.ts";
import type { BlockView } from "../state/page-model.ts";
import { Lru } from "./lru.ts";
import { Tally } from "./tally.ts";
import { stepStatus, toolNames } from "./call-labels.ts";
import { formatMilliseconds } from "../state/format.ts";

/** Of so many calls it is remembered when they were first seen to run. */
const MOST_CALLS = 2_000;

type On = { asked: (toolCallId: string, digest: string, tool: string) => void };

export class Followed {
  readonly #tally = new Tally();
  #heard = new WeakSet<BlockView>();
  #stops: (() => void)[] = [];
  readonly #seenAt = new Lru<string, number>(MOST_CALLS);
  readonly #on: On;
  /** A new one whenever a number has changed. */
  #now = $state.raw({ tally: this.#tally });

  /** `on.asked` is called whenever a call is found to wait for approval. */
  constructor(on: On) {
    this.#on = on;
  }

  /** Hear these from now on; those that are heard already go on. */
  follow(views: readonly BlockView[]): void {
    for (const view of views) {
      if (this.#heard.has(view)) continue;
      this.#heard.add(view);
      this.#hear(view.block);
      this.#stops.push(heard(view, (block) => this.#hear(block)));
    }
  }

  stop(): void {
    for (const stop of this.#stops) stop();
    this.#stops = [];
    this.#heard = new WeakSet();
  }

  get hasEnded(): boolean {
    return this.#now.tally.hasEnded;
  }

  /** "3 of 4 done, 1 failed · 1.2 s" */
  get words(): string {
    const { counts, all, hasEnded, longest } = this.#now.tally;
    return [stepStatus(counts, all), hasEnded && longest > 0 && formatMilliseconds(longest)].filter(Boolean).join(" · ");
  }

  /** From 0 to 1: how many have ended. */
  get share(): number {
    return this.#now.tally.ended / Math.max(1, this.#now.tally.all);
  }

  get names(): string {
    return toolNames(this.#now.tally.tools);
  }

  /** When (ms of our clock) a call was first seen to run; undefined if it never was. */
  seenAt(toolCallId: string): number | undefined {
    return this.#seenAt.get(toolCallId);
  }

  #hear(block: Block): void {
    if (block.type !== "tool") return;
    const { toolCallId, state, tool, digest = "" } = block;
    if (state === "running" && this.#seenAt.get(toolCallId) === undefined) this.#seenAt.set(toolCallId, Date.now());
    if (state === "blocked") this.#on.asked(toolCallId, digest, tool);
    if (this.#tally.put(block)) this.#now = { tally: this.#tally };
  }
}

function heard(view: BlockView, hear: (block: Block) => void): () => void {
  return $effect.root(() => {
    $effect.pre(() => {
      const { block } = view;
      untrack(() => hear(block));
    });
  });
}
