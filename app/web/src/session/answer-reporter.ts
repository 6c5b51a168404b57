// Reports an answer while it grows, as `step` messages: new text, each change of a tool call, and notices.

import { answerStatus } from "@khala/client";
import type { MessageState, ToolBlock } from "@khala/client";
import type { StepMessage, ToolStep } from "../workers/session.messages.ts";

type StepInProgress = Extract<StepMessage, { done: false }>;

/** Reports each change exactly once, however often a state is passed in. */
export class AnswerReporter {
  readonly #id: string;
  readonly #send: (step: StepInProgress) => void;
  #reported: (string | number)[] = [];

  /** `id` is the id of the `chat` request. */
  constructor(id: string, send: (step: StepInProgress) => void) {
    this.#id = id;
    this.#send = send;
  }

  /** Reports what is new in the message; returns whether the message has ended. */
  update(message: MessageState): boolean {
    message.content.forEach((block, index) => {
      if (block.type === "text") this.#text(index, block.text);
      else if (block.type === "tool") this.#tool(index, toolStep(message, block));
      else if (block.type === "notice" && this.#reported[index] === undefined) this.#notice(index, block);
    });
    return answerStatus(message) !== "writing";
  }

  #text(index: number, text: string): void {
    const reported = Number(this.#reported[index] ?? 0);
    if (text.length <= reported) return;
    this.#reported[index] = text.length;
    this.#send({ type: "step", id: this.#id, done: false, text: text.slice(reported) });
  }

  #tool(index: number, tool: ToolStep): void {
    const key = JSON.stringify([tool.state, tool.reason, tool.summary, tool.args]);
    if (this.#reported[index] === key) return;
    this.#reported[index] = key;
    this.#send({ type: "step", id: this.#id, done: false, tool });
  }

  #notice(index: number, { code, message }: { code: string; message: string }): void {
    this.#reported[index] = code;
    this.#send({ type: "step", id: this.#id, done: false, notice: { code, message } });
  }
}

/** The id of a call in a session. Ids that models choose may repeat between runs, so it includes the message's id. */
export function toolIdOf(message: Pick<MessageState, "id">, block: Pick<ToolBlock, "toolCallId">): string {
  return `${message.id}/${block.toolCallId}`;
}

function toolStep(message: MessageState, block: ToolBlock): ToolStep {
  const { tool, state, step, args, argsBlob, reason, summary, output, blob, durationMs } = block;
  const fields = { toolId: toolIdOf(message, block), tool, state, step, args, argsBlob, reason, summary, output, blob, durationMs };
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as ToolStep;
}
