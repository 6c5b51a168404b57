// What the person opened and began to write in the cards of a step; it outlives the cards, which come and go with what is in sight.

import { SvelteSet } from "svelte/reactivity";
import type { ToolBlock } from "../khala/frames.ts";
import { AutoCollapse } from "./auto-collapse.ts";
import { LruCache } from "./lru-cache.ts";

const MAX_GROUPS = 500;
const MAX_DRAFTS = 1_000;

/** An answer to a question that is not given yet. */
export class DecisionDraft {
  /** The arguments as they are edited; null while nobody edits them. */
  text = $state<string | null>(null);
  reason = $state("");
  /** What is wrong with the answer. */
  problem = $state("");
  isInvalid = $state(false);
  isBusy = $state(false);
  /** What became of the question. */
  outcome = $state("");
  /** Whether it was answered here. */
  isDecided = $state(false);
  /** The arguments before they were edited. */
  originalText = $state("");
}

export class GroupState {
  isOpen = $state(false);
  /** The calls whose cards are open. */
  readonly openCalls = new SvelteSet<string>();
  readonly #autoCollapse: AutoCollapse;
  readonly #drafts = new LruCache<string, DecisionDraft>(MAX_DRAFTS);
  /** How it folds by itself: `act` lets it. */
  collapse: (act: () => void) => void = (act) => act();

  constructor(hasEnded: boolean) {
    this.#autoCollapse = new AutoCollapse(hasEnded, () => this.collapse(() => (this.isOpen = false)));
    this.isOpen = this.#autoCollapse.isOpen;
  }

  update(hasEnded: boolean): void {
    this.#autoCollapse.update(hasEnded);
  }

  stop(): void {
    this.#autoCollapse.stop();
  }

  toggle(): void {
    this.#autoCollapse.toggle();
    this.isOpen = this.#autoCollapse.isOpen;
  }

  toggleCard(toolCallId: string): void {
    this.#autoCollapse.touch();
    if (!this.openCalls.delete(toolCallId)) this.openCalls.add(toolCallId);
  }

  /** The draft for just this question: one about other arguments is another question. */
  draftOf({ toolCallId, digest = "" }: ToolBlock): DecisionDraft {
    const key = `${toolCallId} ${digest}`;
    const draft = this.#drafts.get(key) ?? new DecisionDraft();
    this.#drafts.set(key, draft);
    return draft;
  }
}

const groups = new LruCache<string, GroupState>(MAX_GROUPS);

/** The state of a group, by any name that is only its own; a new one begins folded if all of it is history. */
export function groupStateOf(name: string, hasEnded: boolean): GroupState {
  const state = groups.get(name) ?? new GroupState(hasEnded);
  groups.set(name, state);
  return state;
}
