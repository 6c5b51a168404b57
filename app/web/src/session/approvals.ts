// Calls that wait for approval: told of once each, with whole arguments, and decided once each.

import type { Approval, Decision, ToolBlock } from "../khala/frames.ts";
import { ApiError } from "../khala/requests.ts";
import type { MessageState } from "../khala/state.ts";
import type { ApproveTool, FromSession } from "../workers/session.messages.ts";
import { toolIdOf } from "./answer.ts";
import { Failed, problemOf } from "./failing.ts";
import type { Server } from "./server.ts";

/** How many of the calls that were decided are remembered. */
const MOST_DECIDED = 1000;

type Pending = { runId: string; toolCallId: string; digest?: string };

export class Approvals {
  readonly #server: Pick<Server, "insist">;
  readonly #say: (message: FromSession) => void;
  readonly #pending = new Map<string, Pending>();
  readonly #decided = new Set<string>();

  constructor(server: Pick<Server, "insist">, say: (message: FromSession) => void) {
    this.#server = server;
    this.#say = say;
  }

  /** Tell of the calls of this answer that wait and were not told of, and forget those that wait no more; `id` is the chat's. */
  see(id: string, message: MessageState): void {
    for (const block of message.content) {
      if (block.type !== "tool") continue;
      const toolId = toolIdOf(message, block);
      if (block.state !== "blocked") this.#pending.delete(toolId);
      else if (!this.#pending.has(toolId) && !this.#decided.has(toolId) && message.runId) {
        this.#pending.set(toolId, { runId: message.runId, toolCallId: block.toolCallId, ...(block.digest && { digest: block.digest }) });
        this.#tell(id, toolId, message.runId, block);
      }
    }
  }

  /** Nothing waits any more. */
  clear(): void {
    this.#pending.clear();
  }

  /** Decide a call; Failed with `not_found` or `already_decided`, or as the server says, after which one may try again. */
  async decide({ toolId, approved, reason, args }: ApproveTool): Promise<{ toolId: string; state: Approval["state"] }> {
    if (this.#decided.has(toolId)) throw new Failed("already_decided", "This call was decided.");
    const pending = this.#pending.get(toolId);
    if (!pending) throw new Failed("not_found", "No call with this `toolId` waits for approval.");
    const { runId, toolCallId, digest } = pending;
    const decision: Decision = { approved, ...(reason && { reason }), ...(args && { editedArgs: args }), ...(digest && { digest }) };
    this.#remember(toolId);
    try {
      const { state } = await this.#server.insist<Approval>("POST", `/api/runs/${runId}/approvals/${encodeURIComponent(toolCallId)}`, decision);
      return { toolId, state };
    } catch (error) {
      const isDecided = error instanceof ApiError && error.status === 409;
      if (!isDecided) this.#decided.delete(toolId);
      throw error;
    }
  }

  #tell(id: string, toolId: string, runId: string, block: ToolBlock): void {
    const { tool, args, digest, expiresAt } = block;
    const about = { type: "tool_pending", id, toolId, tool, ...(digest && { digest }), ...(expiresAt && { expiresAt }) } as const;
    if (args) return this.#say({ ...about, args });
    // Large arguments aren't in the thread, and nobody should approve of what they have not seen.
    this.#wholeArgs(runId, block.toolCallId).then(
      (whole) => this.#say({ ...about, args: whole }),
      (error: unknown) => this.#say({ type: "error", error: problemOf(error) }),
    );
  }

  async #wholeArgs(runId: string, toolCallId: string): Promise<Record<string, unknown>> {
    const { items } = await this.#server.insist<{ items: Approval[] }>("GET", `/api/runs/${runId}/approvals`);
    const found = items.find((approval) => approval.toolCallId === toolCallId);
    if (!found) throw new Failed("not_found", "What the call is given could not be found.");
    return found.args;
  }

  #remember(toolId: string): void {
    this.#decided.add(toolId);
    for (const oldest of this.#decided) if (this.#decided.size > MOST_DECIDED) this.#decided.delete(oldest);
  }
}
