// Plans and memories over HTTP. The plans of a thread that is followed are in its state, too.

import type { Api } from "./api.ts";
import type { ImportedPlan, Items, Memory, MemoryChanges, NewMemory, NewPlan, NewPlanDraft, Page, PlanDetail, PlanDetailChanges, PlanDraftState, PlanEdit, PlanEntry, PlanEventPage, PlanWithSteps, StepDetail } from "./frames.ts";
import { checkedId, newId } from "./ids.ts";

/** Commands for a plan that a client may repeat: asking for what is already so changes nothing. */
export type PlanCommand = "start" | "resume" | "stop";
export type StepCommand = "retry" | "skip" | "cancel";

/** Plans: work in steps. Errors as those of `request`; every command returns the plan after it. */
export class PlansClient {
  readonly #api: Api;

  constructor(api: Api) {
    this.#api = api;
  }

  /** Create an idle plan. Repeated under the same `planId`. */
  create(threadId: string, plan: NewPlan): Promise<PlanWithSteps> {
    return this.#api.send("POST", `/api/threads/${checkedId(threadId)}/plans`, { body: { planId: newId(), ...plan }, isIdempotent: true });
  }

  /** Create the plan in a document. */
  import(threadId: string, plan: ImportedPlan): Promise<PlanWithSteps> {
    return this.#api.send("POST", `/api/threads/${checkedId(threadId)}/plans/import`, { body: { planId: newId(), ...plan }, isIdempotent: true });
  }

  /** Let a model make a plan of a goal. `getDraft` says how far it is. */
  draft(threadId: string, draft: NewPlanDraft): Promise<PlanDraftState> {
    return this.#api.send("POST", `/api/threads/${checkedId(threadId)}/plans/draft`, { body: { planId: newId(), ...draft }, isIdempotent: true });
  }

  getDraft(threadId: string, planId: string): Promise<PlanDraftState> {
    return this.#api.send("GET", `/api/threads/${checkedId(threadId)}/plans/draft/${checkedId(planId)}`);
  }

  list(threadId: string, query: { cursor?: string; limit?: number } = {}): Promise<Page<PlanEntry>> {
    return this.#api.send("GET", `/api/threads/${checkedId(threadId)}/plans`, { query });
  }

  get(planId: string): Promise<PlanDetail> {
    return this.#api.send("GET", `/api/plans/${checkedId(planId)}`);
  }

  async steps(planId: string): Promise<StepDetail[]> {
    return (await this.#api.send<Items<StepDetail>>("GET", `/api/plans/${checkedId(planId)}/steps`)).items;
  }

  events(planId: string, query: { after?: number; limit?: number; stepId?: string } = {}): Promise<PlanEventPage> {
    return this.#api.send("GET", `/api/plans/${checkedId(planId)}/events`, { query });
  }

  start(planId: string): Promise<PlanDetail> {
    return this.#command(planId, "start");
  }

  /** Pause after the steps that are running; with `force`, cancel these and open them again. */
  pause(planId: string, { force = false }: { force?: boolean } = {}): Promise<PlanDetail> {
    return this.#api.send("POST", `/api/plans/${checkedId(planId)}/pause`, { body: { force }, isIdempotent: true });
  }

  resume(planId: string): Promise<PlanDetail> {
    return this.#command(planId, "resume");
  }

  stop(planId: string): Promise<PlanDetail> {
    return this.#command(planId, "stop");
  }

  update(planId: string, changes: PlanDetailChanges): Promise<PlanDetail> {
    return this.#api.send("PATCH", `/api/plans/${checkedId(planId)}`, { body: changes, isIdempotent: true });
  }

  /** Change steps. With `ifEventSeq`, `ApiError` `conflict` if somebody else has changed the plan meanwhile. It is not repeated. */
  edit(planId: string, edit: PlanEdit): Promise<PlanDetail> {
    return this.#api.send("POST", `/api/plans/${checkedId(planId)}/edit`, { body: edit });
  }

  step(planId: string, stepId: string, command: StepCommand): Promise<PlanDetail> {
    return this.#api.send("POST", `/api/plans/${checkedId(planId)}/steps/${encodeURIComponent(stepId)}/${command}`, { isIdempotent: true });
  }

  async delete(planId: string): Promise<void> {
    await this.#api.send("DELETE", `/api/plans/${checkedId(planId)}`);
  }

  #command(planId: string, command: PlanCommand): Promise<PlanDetail> {
    return this.#api.send("POST", `/api/plans/${checkedId(planId)}/${command}`, { isIdempotent: true });
  }
}

export interface MemoryQuery {
  /** Find the best matches for this text, instead of the newest. */
  q?: string;
  scope?: "user" | "thread" | "agent";
  threadId?: string;
  superseded?: "include" | "exclude";
  cursor?: string;
  limit?: number;
}

/** Memories: short texts that outlive their thread. Errors as those of `request`. */
export class MemoriesClient {
  readonly #api: Api;

  constructor(api: Api) {
    this.#api = api;
  }

  /** Store a text. The same text again counts as a use of the memory that there is. */
  create(memory: NewMemory): Promise<Memory> {
    return this.#api.send("POST", "/api/memories", { body: memory });
  }

  list(query: MemoryQuery = {}): Promise<Page<Memory>> {
    return this.#api.send("GET", "/api/memories", { query: { ...query } });
  }

  /** Correct a memory. Returns the one that supersedes it. */
  update(memoryId: string, changes: MemoryChanges): Promise<Memory> {
    return this.#api.send("PATCH", `/api/memories/${checkedId(memoryId)}`, { body: changes });
  }

  async delete(memoryId: string): Promise<void> {
    await this.#api.send("DELETE", `/api/memories/${checkedId(memoryId)}`);
  }
}
