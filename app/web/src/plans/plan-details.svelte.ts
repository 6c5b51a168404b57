// The goal, the rules and the steps of one plan, read over REST when the feed says that they have changed.

import { isRequestError, stepsNeededFrom } from "@khala/client";
import type { Items, PlanDetail, PlanEntry, PlanEventEntry, PlanState, StepDetail } from "@khala/client";
import { mergeProgress } from "./merge-progress.ts";

const MAX_EVENTS = 200;
const RECENT_EVENTS = 50;

/** Sends a request with the keys of the chat. Errors as those of `request`. */
export type CallApi = <T>(method: string, path: string, body?: unknown) => Promise<T>;

export class PlanDetails {
  readonly id: string;
  readonly #send: CallApi;
  detail: PlanDetail | null = $state.raw(null);
  #read: { revision: number; steps: readonly StepDetail[] } | null = $state.raw(null);
  events: readonly PlanEventEntry[] = $state.raw([]);
  hasFailed = $state(false);
  /** Up to which number the events were asked for. */
  askedSeq = $state(0);
  #isReading = false;
  #isReadingEvents = false;

  constructor(id: string, send: CallApi) {
    this.id = id;
    this.#send = send;
  }

  /** The steps as they are now: as they were read, with the progress since. Null until they have been read. */
  steps(plan: PlanState): readonly StepDetail[] | null {
    const read = this.#read;
    if (read === null) return null;
    return mergeProgress(read.steps, plan.steps.filter(({ revision }) => revision > read.revision));
  }

  /** Whether the steps or the goal must be read again. */
  #isBehind(plan: PlanState): boolean {
    const { revision } = this.#read ?? { revision: -1 };
    if (revision < stepsNeededFrom(plan)) return true;
    // Progress does not tell which steps are blocked.
    const blocked = this.steps(plan)?.filter((step) => step.blocked && step.status === "open").length;
    return blocked !== plan.entry.counts.blocked && revision < plan.entry.revision;
  }

  /** Whether the step that the plan's reason is about is known, as far as it can be. */
  isReasonKnown({ entry }: PlanState): boolean {
    return this.hasFailed || (this.#read !== null && Math.max(this.askedSeq, this.events.at(-1)?.seq ?? 0) >= entry.eventSeq);
  }

  /** Read again what is out of date. `revision` is that of the thread's state that has this plan. Does nothing while it reads. */
  async update(plan: PlanState, revision: number): Promise<void> {
    if (this.#isReading || !this.#isBehind(plan)) return;
    this.#isReading = true;
    try {
      const [detail, { items }] = await Promise.all([this.#send<PlanDetail>("GET", `/api/plans/${this.id}`), this.#send<Items<StepDetail>>("GET", `/api/plans/${this.id}/steps`)]);
      this.#isReading = false;
      [this.detail, this.#read, this.hasFailed] = [detail, { revision, steps: items }, false];
    } catch (error) {
      this.#isReading = false;
      if (!isRequestError(error)) throw error;
      this.hasFailed = true;
    }
  }

  /** Read the events up to number `seq` that are missing, the newest ones at first. */
  async readEvents(seq: number): Promise<void> {
    const last = this.events.at(-1)?.seq ?? Math.max(0, seq - RECENT_EVENTS);
    if (this.#isReadingEvents || last >= seq) return;
    this.#isReadingEvents = true;
    try {
      const { items } = await this.#send<Items<PlanEventEntry>>("GET", `/api/plans/${this.id}/events?after=${last}`);
      // Unchanged events wake nobody who would read them again.
      if (items.length > 0) this.events = [...this.events, ...items].slice(-MAX_EVENTS);
    } catch (error) {
      if (!isRequestError(error)) throw error;
    } finally {
      this.#isReadingEvents = false;
      this.askedSeq = seq;
    }
  }
}

/** Whether a plan waits for somebody, or has stopped, because of one step. */
export function isAboutStep({ status, reason }: Pick<PlanEntry, "status" | "reason">): boolean {
  return status === "paused" ? reason === "review" || reason === "step_failed" : status === "stopped" && reason === "error";
}

/**
 * The step that a plan's reason is about. Where the events do not tell which step failed, because it failed before those that were
 * read, or because they could not be read, the last of the failed ones is taken. Null if it is not known.
 *
 * `isComplete`: no more events are being read.
 */
export function findReasonStep(plan: PlanState, steps: readonly StepDetail[], events: readonly PlanEventEntry[], isComplete: boolean): StepDetail | null {
  const { entry } = plan;
  const id = reasonStepId(plan, events);
  const named = steps.find((step) => step.id === id) ?? null;
  const isNewest = named !== null && (events.at(-1)?.seq ?? 0) >= entry.eventSeq;
  if (!isAboutStep(entry) || entry.reason === "review" || named?.status === "failed" || isNewest || !isComplete) return named;
  return steps.findLast(({ status }) => status === "failed") ?? named;
}

/** The id of that step: the last one that was completed, or that failed. Null if there is none, or if it is not known. */
export function reasonStepId({ entry }: PlanState, events: readonly PlanEventEntry[]): string | null {
  if (!isAboutStep(entry)) return null;
  const type = entry.reason === "review" ? "step_completed" : "step_failed";
  return events.findLast((event) => event.type === type)?.stepId ?? null;
}
