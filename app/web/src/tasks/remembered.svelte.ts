// What the person opened and began to write in the cards of a step; it outlives the cards, which come and go with what is in sight.

import { SvelteSet } from "svelte/reactivity";
import type { ToolBlock } from "../khala/frames.ts";
import { Folding } from "./folding.ts";
import { Lru } from "./lru.ts";

const MOST_GROUPS = 500;
const MOST_DRAFTS = 1_000;

/** An answer to a question that is not given yet. */
export class Draft {
  /** The arguments as they are edited; null while nobody edits them. */
  text = $state<string | null>(null);
  reason = $state("");
  /** What is wrong with the answer. */
  problem = $state("");
  isInvalid = $state(false);
  isBusy = $state(false);
  /** What became of the question. */
  done = $state("");
  /** Whether it was answered here. */
  isGiven = $state(false);
  /** The arguments before they were edited. */
  before = $state("");
}

export class GroupState {
  isOpen = $state(false);
  /** The calls whose cards are open. */
  readonly opened = new SvelteSet<string>();
  readonly #folding: Folding;
  readonly #drafts = new Lru<string, Draft>(MOST_DRAFTS);
  /** How it folds by itself: `act` lets it. */
  folds: (act: () => void) => void = (act) => act();

  constructor(hasEnded: boolean) {
    this.#folding = new Folding(hasEnded, () => this.folds(() => (this.isOpen = false)));
    this.isOpen = this.#folding.isOpen;
  }

  hear(hasEnded: boolean): void {
    this.#folding.hear(hasEnded);
  }

  stop(): void {
    this.#folding.stop();
  }

  toggle(): void {
    this.#folding.toggle();
    this.isOpen = this.#folding.isOpen;
  }

  toggleCard(toolCallId: string): void {
    this.#folding.touch();
    if (!this.opened.delete(toolCallId)) this.opened.add(toolCallId);
  }

  /** The draft for just this question: one about other arguments is another question. */
  draftOf({ toolCallId, digest = "" }: ToolBlock): Draft {
    const key = `${toolCallId} ${digest}`;
    const draft = this.#drafts.get(key) ?? new Draft();
    this.#drafts.set(key, draft);
    return draft;
  }
}

const groups = new Lru<string, GroupState>(MOST_GROUPS);

/** The state of a group, by any name that is only its own; a new one begins folded if all of it is history. */
export function remembered(name: string, hasEnded: boolean): GroupState {
  const state = groups.get(name) ?? new GroupState(hasEnded);
  groups.set(name, state);
  return state;
}
