// Approvals of a session: reports each waiting call once with its whole arguments, and decides it at most once.

import { ApiError } from "@khala/client";
import type { Approval, DecisionRequest, MessageState, ToolBlock } from "@khala/client";
import type { ApproveTool, FromSession } from "../workers/session.messages.ts";
import { toolIdOf } from "./answer-reporter.ts";
import { SessionError, problemOf } from "./session-error.ts";
import type { Server } from "./server.ts";

/** Upper bound of the decided calls that are remembered. */
const MAX_DECIDED_CALLS = 1000;

type Pending = { runId: string; toolCallId: string; digest?: string };

export class Approvals {
  readonly #server: Pick<Server, "requestWithRetry">;
  readonly #send: (message: FromSession) => void;
  readonly #pending = new Map<string, Pending>();
  readonly #decided = new Set<string>();

  constructor(server: Pick<Server, "requestWithRetry">, send: (message: FromSession) => void) {
    this.#server = server;
    this.#send = send;
  }

  /** Reports the answer's waiting calls that were not reported yet, and forgets those that no longer wait. `id` is the chat's. */
  update(id: string, message: MessageState): void {
    for (const block of message.content) {
      if (block.type !== "tool") continue;
      const toolId = toolIdOf(message, block);
      if (block.state !== "blocked") this.#pending.delete(toolId);
      else if (!this.#pending.has(toolId) && !this.#decided.has(toolId) && message.runId) {
        this.#pending.set(toolId, { runId: message.runId, toolCallId: block.toolCallId, ...(block.digest && { digest: block.digest }) });
        this.#report(id, toolId, message.runId, block);
      }
    }
  }

  /** Forgets all waiting calls. */
  clear(): void {
    this.#pending.clear();
  }

  /** Decides a call. Throws SessionError `not_found` or `already_decided`, or the server's error; after the latter a retry is possible. */
  async decide({ toolId, approved, reason, args }: ApproveTool): Promise<{ toolId: string; state: Approval["state"] }> {
    if (this.#decided.has(toolId)) throw new SessionError("already_decided", "This call was decided.");
    const pending = this.#pending.get(toolId);
    if (!pending) throw new SessionError("not_found", "No call with this `toolId` waits for approval.");
    const { runId, toolCallId, digest } = pending;
    const decision: DecisionRequest = { approved, ...(reason && { reason }), ...(args && { editedArgs: args }), ...(digest && { digest }) };
    this.#remember(toolId);
    try {
      const { state } = await this.#server.requestWithRetry<Approval>("POST", `/api/runs/${runId}/approvals/${encodeURIComponent(toolCallId)}`, decision);
      return { toolId, state };
    } catch (error) {
      const isDecided = error instanceof ApiError && error.status === 409;
      if (!isDecided) this.#decided.delete(toolId);
      throw error;
    }
  }

  #report(id: string, toolId: string, runId: string, block: ToolBlock): void {
    const { tool, args, digest, expiresAt } = block;
    const about = { type: "tool_pending", id, toolId, tool, ...(digest && { digest }), ...(expiresAt && { expiresAt }) } as const;
    if (args) return this.#send({ ...about, args });
    // Large arguments are stored outside the thread; fetch them, so that people see all of what they approve.
    this.#wholeArgs(runId, block.toolCallId).then(
      (whole) => this.#send({ ...about, args: whole }),
      (error: unknown) => this.#send({ type: "error", error: problemOf(error) }),
    );
  }

  async #wholeArgs(runId: string, toolCallId: string): Promise<Record<string, unknown>> {
    const { items } = await this.#server.requestWithRetry<{ items: Approval[] }>("GET", `/api/runs/${runId}/approvals`);
    const found = items.find((approval) => approval.toolCallId === toolCallId);
    if (!found) throw new SessionError("not_found", "The arguments of the call could not be found.");
    return found.args;
  }

  #remember(toolId: string): void {
    this.#decided.add(toolId);
    for (const oldest of this.#decided) if (this.#decided.size > MAX_DECIDED_CALLS) this.#decided.delete(oldest);
  }
}
