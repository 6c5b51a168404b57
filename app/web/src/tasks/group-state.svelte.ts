// What the person opened and typed in the cards of a group. It outlives the cards, which are mounted only near the visible area.

import { SvelteSet } from "svelte/reactivity";
import type { ToolBlock } from "@khala/client";
import { AutoCollapse } from "./auto-collapse.ts";
import { LruCache } from "./lru-cache.ts";
import type { FormValues } from "./question-form.ts";

const MAX_GROUPS = 500;
const MAX_DRAFTS = 1_000;

/** A decision about a tool call that is not sent yet. */
export class DecisionDraft {
  /** The arguments as they are edited; null while they are not edited. */
  text = $state<string | null>(null);
  reason = $state("");
  /** Whether a reason can be entered. */
  hasReason = $state(false);
  /** What was entered into the form of a tool's question, by the names of its fields. */
  values = $state.raw<FormValues>({});
  /** The error of the decision. */
  problem = $state("");
  isInvalid = $state(false);
  isBusy = $state(false);
  /** The outcome of the decision. */
  outcome = $state("");
  /** Whether it was decided on this page. */
  isDecided = $state(false);
  /** Whether that decision allows the tool in the whole chat. */
  isAllowedInChat = $state(false);
  /** The arguments before editing. */
  originalText = $state("");
}

export class GroupState {
  isOpen = $state(false);
  /** The ids of calls whose cards are open. */
  readonly openCalls = new SvelteSet<string>();
  readonly #autoCollapse: AutoCollapse;
  readonly #drafts = new LruCache<string, DecisionDraft>(MAX_DRAFTS);
  /** Replaceable hook of the automatic collapse. It must call `act`. */
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

  open(): void {
    this.#autoCollapse.open();
    this.isOpen = true;
  }

  toggleCard(toolCallId: string): void {
    this.#autoCollapse.touch();
    if (!this.openCalls.delete(toolCallId)) this.openCalls.add(toolCallId);
  }

  /** The draft for this version of the call: other arguments need another decision. */
  draftOf({ toolCallId, digest = "" }: ToolBlock): DecisionDraft {
    const key = `${toolCallId} ${digest}`;
    const draft = this.#drafts.get(key) ?? new DecisionDraft();
    this.#drafts.set(key, draft);
    return draft;
  }
}

const groups = new LruCache<string, GroupState>(MAX_GROUPS);

/** The state of a group by its unique name. A new group starts collapsed if all its calls have ended. */
export function groupStateOf(name: string, hasEnded: boolean): GroupState {
  const state = groups.get(name) ?? new GroupState(hasEnded);
  groups.set(name, state);
  return state;
}
