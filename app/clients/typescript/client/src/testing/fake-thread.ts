// A fake thread as the server stores it: rows with revisions, from which it computes snapshots and deltas of any range.

import { fold, textOf } from "../fold.ts";
import type { Block, DeltaFrame, Message, Part, PlanEntry, SnapshotFrame, StepProgress, Thread } from "../frames.ts";
import type { Random } from "./random.ts";

type NewPart = Pick<Part, "kind" | "data">;
type PlanRow = { entry: PlanEntry; steps: Map<string, { step: StepProgress; revision: number }> };
type Row = { message: Message & { content: Block[] }; revision: number };

export const THREAD = "00000000-0000-7000-8000-000000000001";
/** A delta with more changed steps has none. */
const MAX_FEED_STEPS = 3;
const BEGINNING = Date.UTC(2031, 0, 1);

/** Each change is a commit with the next revision. */
export class FakeThread {
  revision = 1;
  title = "";
  readonly id: string;
  readonly #rows: Row[] = [];
  readonly #parts: { part: Part; revision: number }[] = [];
  readonly #plans = new Map<string, PlanRow>();
  #titleRevision = 1;

  constructor(id = THREAD) {
    this.id = id;
  }

  /** Add a question and a draft of its answer. Returns their ids. */
  ask(text: string, parentId = this.#rows.at(-1)?.message.id, id?: string): { question: string; answer: string } {
    this.revision++;
    const question = this.#add("user", parentId, [{ type: "text", text }], id);
    return { question, answer: this.#add("assistant", question, []) };
  }

  /** Append parts to an answer, in one commit. */
  appendParts(answer: string, ...parts: NewPart[]): void {
    this.revision++;
    const row = this.#row(answer);
    for (const newPart of parts) {
      const part = { ...newPart, runId: `run-${answer}`, messageId: answer, seq: row.message.seq, createdAt: this.#now() } as Part;
      this.#parts.push({ part, revision: this.revision });
      row.message = { ...row.message, status: "streaming", seq: part.seq + 1, content: fold(row.message.content, [part]) };
      if (part.kind === "finish") row.message = { ...row.message, status: "final", finish: part.data };
    }
    row.revision = this.revision;
  }

  rename(title: string): void {
    this.title = title;
    this.#titleRevision = ++this.revision;
  }

  /** Create a plan, or change it and the progress of these steps. */
  changePlan(id: string, ...steps: Pick<StepProgress, "id" | "status">[]): void {
    const at = this.#now();
    const counts = { open: 0, running: 0, completed: 0, failed: 0, skipped: 0, cancelled: 0, blocked: 0 };
    const row = this.#plans.get(id) ?? { steps: new Map<string, { step: StepProgress; revision: number }>(), entry: null };
    const revision = ++this.revision;
    for (const step of steps) row.steps.set(step.id, { step: { planId: id, attempts: 1, ...step }, revision });
    const entry: PlanEntry = {
      ...{ id, threadId: this.id, title: "Plan", mode: "all", status: "running", agent: "default", counts, spent: {}, budget: {}, createdAt: at, updatedAt: at },
      ...{ iteration: 0, maxIterations: 9, eventSeq: revision, revision, editedRevision: row.entry?.editedRevision ?? revision },
    };
    this.#plans.set(id, { entry, steps: row.steps });
  }

  /** The progress of each step of a plan, by its id. */
  progressOf(plan: string): Record<string, StepProgress> {
    return Object.fromEntries([...(this.#plans.get(plan)?.steps ?? [])].map(([id, { step }]) => [id, step]));
  }

  get planIds(): string[] {
    return [...this.#plans.keys()].sort().reverse();
  }

  get open(): string[] {
    return this.#rows.filter(({ message }) => message.role === "assistant" && !message.finish).map(({ message }) => message.id);
  }

  get ids(): string[] {
    return this.#rows.map(({ message }) => message.id);
  }

  /** The text of each message, by its id. */
  get texts(): Record<string, string> {
    return Object.fromEntries(this.#rows.map(({ message }) => [message.id, textOf(message)]));
  }

  get contents(): Record<string, Block[]> {
    return Object.fromEntries(this.#rows.map(({ message }) => [message.id, message.content]));
  }

  snapshot(newest = 100): SnapshotFrame {
    const messages = this.#rows.slice(-newest).map(({ message }) => message);
    return { type: "snapshot", threadId: this.id, revision: this.revision, thread: this.#thread(), messages, hasMore: this.#rows.length > newest, plans: this.planIds.flatMap((id) => this.#plans.get(id)?.entry ?? []) };
  }

  /** The delta since a revision, or null if nothing has changed. */
  delta(since: number): DeltaFrame | null {
    if (since >= this.revision) return null;
    const changed = this.#rows.filter((row) => row.revision > since).sort((one, other) => one.revision - other.revision);
    const messages = changed.map(({ message }) => (message.role === "assistant" ? headOf(message) : message));
    const parts = this.#parts.filter((one) => one.revision > since).map(({ part }) => part);
    const thread = this.#titleRevision > since && { thread: this.#thread() };
    const plans = [...this.#plans.values()].filter(({ entry }) => entry.revision > since);
    const steps = plans.flatMap((plan) => [...plan.steps.values()].filter(({ revision }) => revision > since).map(({ step }) => step));
    const planChanges = plans.length > 0 && { plans: plans.map(({ entry }) => entry), planSteps: steps.length > MAX_FEED_STEPS ? null : steps };
    return { type: "delta", threadId: this.id, from: since, revision: this.revision, ...thread, messages, parts, ...planChanges };
  }

  /** Commit a random change. */
  commitSomething(dice: Random): void {
    const [answer] = this.open;
    if (dice.chance(0.15)) return this.changePlan(dice.pick(["plan-1", "plan-2"]), ...(["a", "b", "c", "d"].filter(() => dice.chance(0.4)).map((id) => ({ id, status: dice.pick(["open", "running", "completed"] as const) }))));
    if (answer === undefined) this.ask(`Question ${this.revision}`, dice.chance(0.7) || this.ids.length === 0 ? undefined : dice.pick(this.ids));
    else if (dice.chance(0.1)) this.rename(`Title ${this.revision}`);
    else if (dice.chance(0.15)) this.appendParts(answer, { kind: "finish", data: { reason: "stop", usage: { inputTokens: 1, outputTokens: 1 } } });
    else this.appendParts(answer, ...Array.from({ length: 1 + dice.below(3) }, () => this.#randomPart(dice)));
  }

  #randomPart(dice: Random): NewPart {
    const toolCallId = dice.pick(["a", "b", "c"]);
    return dice.pick<NewPart>([
      { kind: "text-delta", data: { text: `${this.revision}é😀 ` } },
      { kind: "text-delta", data: { text: "more " } },
      { kind: "tool-call", data: { toolCallId, step: 1, tool: "grep", args: { pattern: "x" } } },
      { kind: "tool-status", data: { toolCallId, state: "running" } },
      { kind: "tool-result", data: { toolCallId, ok: true, summary: "done", durationMs: 3 } },
      { kind: "notice", data: { code: "resumed", message: "Went on." } },
    ]);
  }

  #add(role: Message["role"], parentId: string | undefined, content: Block[], id = `message-${String(this.#rows.length).padStart(5, "0")}`): string {
    const at = this.#now();
    const status = role === "user" ? "final" : "draft";
    const parent = parentId === undefined ? {} : { parentId };
    const message = { id, threadId: this.id, ...parent, role, status, seq: 0, content, createdAt: at, updatedAt: at } as const;
    this.#rows.push({ message, revision: this.revision });
    return id;
  }

  #row(id: string): Row {
    const row = this.#rows.find(({ message }) => message.id === id);
    if (row === undefined) throw new Error(`There is no message ${id}.`);
    return row;
  }

  #thread(): Thread {
    const at = new Date(BEGINNING).toISOString();
    return { id: this.id, title: this.title, visibility: "private", revision: this.revision, createdAt: at, updatedAt: this.#now() };
  }

  #now(): string {
    return new Date(BEGINNING + 1000 * this.revision).toISOString();
  }
}

/** A message without its content. */
export function headOf(message: Message): Message {
  const head = { ...message };
  delete head.content;
  return head;
}
