// One run: the answer to a message, as it is written, and the commands for it.

import type { Api } from "./api.ts";
import { fold, textOf } from "./fold.ts";
import type { Approval, Block, Finish, Items, Message, Part, PartPage, Run, RunFailure } from "./frames.ts";
import { valuesOf } from "./observable.ts";
import { ApiError } from "./requests.ts";
import type { AnswerStatus, MessageState } from "./state.ts";
import { answerStatus } from "./state.ts";
import type { ThreadFeed } from "./thread-feed.ts";
import type { ThreadView } from "./thread-view.ts";

/** What identifies a run. `revision` is one of its thread at which the run exists. */
export interface RunIds {
  readonly runId: string;
  readonly threadId: string;
  /** The id of the answer. */
  readonly messageId: string;
  readonly revision: number;
}

/** The end of a run. */
export interface RunResult {
  readonly status: Exclude<AnswerStatus, "writing">;
  /** The text of the answer. */
  readonly text: string;
  readonly message: MessageState;
  readonly finish?: Finish;
  /** Why the run failed. */
  readonly failure?: RunFailure;
}

/** A decision about a call that waits for approval. */
export interface ApprovalOptions {
  reason?: string;
  /** The arguments to call the tool with instead. */
  editedArgs?: Record<string, unknown>;
  /** The digest of the call that the person has seen; the decision about any other call is refused. */
  digest?: string;
}

/** The subscription to a thread was refused. `code` is stable. */
export class SubscriptionRefusedError extends Error {
  override readonly name = "SubscriptionRefusedError";
  readonly code: string;

  constructor(code: string, message: string) {
    super(message || `The server refuses the subscription: ${code}.`);
    this.code = code;
  }
}

/** A run of a thread. It continues on the server, whether anybody follows it or not. */
export class RunClient {
  readonly ids: RunIds;
  readonly #api: Api;
  readonly #feed: ThreadFeed;

  /** Use `thread.send` or `thread.run`. */
  constructor(api: Api, feed: ThreadFeed, ids: RunIds) {
    this.#api = api;
    this.#feed = feed;
    this.ids = ids;
  }

  get id(): string {
    return this.ids.runId;
  }

  /**
   * The answer as it grows: one state after each change, the last one with its end. A slow reader skips states. Reconnects by
   * itself. Throws `SubscriptionRefusedError` if access ends, and `ApiError` `run_not_found` if the answer is deleted. Ends
   * when `signal` is aborted, or the client is closed.
   */
  async *follow({ signal }: { signal?: AbortSignal } = {}): AsyncGenerator<MessageState, void> {
    let last: MessageState | null = null;
    for await (const view of valuesOf(this.#feed.view, signal)) {
      if (view.status === "refused" && view.error) throw new SubscriptionRefusedError(view.error.code, view.error.message);
      if (view.status === "idle") return; // closed
      const message = await this.#find(view, signal);
      if (message === null || message === last) continue;
      last = message;
      yield message;
      if (answerStatus(message) !== "writing") return;
    }
  }

  /**
   * The text of the answer in pieces; joined, they are the whole text. With `responseFormat`, text that the model has to write
   * again stays among the pieces: use `result`. Errors as those of `follow`.
   */
  async *text(options: { signal?: AbortSignal } = {}): AsyncGenerator<string, void> {
    let position = 0;
    for await (const { content } of this.follow(options)) {
      const whole = rawText(content);
      if (whole.length > position) yield whole.slice(position);
      position = whole.length;
    }
  }

  /** The end of the run. Errors as those of `follow`; `AbortError` if that ends earlier. A run that failed is no error. */
  async result(options: { signal?: AbortSignal } = {}): Promise<RunResult> {
    for await (const message of this.follow(options)) {
      const status = answerStatus(message);
      const { finish, failure } = message;
      if (status !== "writing") return { status, text: textOf(message), message, ...(finish && { finish }), ...(failure && { failure }) };
    }
    throw new DOMException("The result is not awaited any more.", "AbortError");
  }

  /** Cancel the run. Its text so far stays. Errors as those of `request`. */
  cancel(reason?: string): Promise<Run> {
    return this.#api.send("POST", `/api/runs/${this.id}/cancel`, { body: { ...(reason !== undefined && { reason }) }, isIdempotent: true });
  }

  /** The run's state on the server. */
  get(): Promise<Run> {
    return this.#api.send("GET", `/api/runs/${this.id}`);
  }

  /** The calls of the run that need or needed an approval. */
  async approvals(): Promise<Approval[]> {
    return (await this.#api.send<Items<Approval>>("GET", `/api/runs/${this.id}/approvals`)).items;
  }

  /** Approve a call. The first decision is final: `ApiError` `already_decided` if there is another one. */
  approve(toolCallId: string, options: ApprovalOptions = {}): Promise<Approval> {
    return this.#decide(toolCallId, { approved: true, ...options });
  }

  /** Deny a call; the model gets the reason. Errors as those of `approve`. */
  deny(toolCallId: string, options: Omit<ApprovalOptions, "editedArgs"> = {}): Promise<Approval> {
    return this.#decide(toolCallId, { approved: false, ...options });
  }

  #decide(toolCallId: string, body: ApprovalOptions & { approved: boolean }): Promise<Approval> {
    return this.#api.send("POST", `/api/runs/${this.id}/approvals/${encodeURIComponent(toolCallId)}`, { body, isIdempotent: true });
  }

  /** The answer in this view; null if it has not arrived yet. One that is older than the loaded messages is read from the server. */
  async #find({ state }: ThreadView, signal?: AbortSignal): Promise<MessageState | null> {
    const { messageId, runId, revision } = this.ids;
    const found = state.messages.find(({ id }) => id === messageId);
    if (found || state.revision === null || state.revision < revision) return found ?? null;
    if (!state.hasMore) throw new ApiError(404, { code: "run_not_found", detail: "The answer was deleted." });
    return readAnswer(this.#api, runId, signal);
  }
}

/** An answer as its parts are stored now. */
async function readAnswer(api: Api, runId: string, signal?: AbortSignal): Promise<MessageState> {
  const run = await api.send<Run>("GET", `/api/runs/${runId}`, { signal });
  const parts: Part[] = [];
  for (let after = -1, isDone = false; !isDone; ) {
    const page = await api.send<PartPage>("GET", `/api/runs/${runId}/parts`, { query: { after, limit: 1000 }, signal });
    parts.push(...page.items);
    isDone = page.items.length === 0 || page.done;
    after = page.nextAfter;
  }
  const { threadId, messageId, createdAt, finish } = run;
  const status: Message["status"] = run.status === "queued" || run.status === "running" || run.status === "blocked" ? "streaming" : run.status;
  return { id: messageId, threadId, runId, role: "assistant", status, seq: parts.length, content: fold([], parts), createdAt, updatedAt: createdAt, ...(finish && { finish }) };
}

function rawText(content: readonly Block[]): string {
  return content.map((block) => (block.type === "text" ? block.text : "")).join("");
}
