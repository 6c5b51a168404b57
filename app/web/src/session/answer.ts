// An answer as it grows, told in steps: text as it comes, each change of a tool call, and the end.

import type { ToolBlock } from "../khala/frames.ts";
import { answerStatus, type MessageState } from "../khala/state.ts";
import type { StepMessage, ToolStep } from "../workers/session.messages.ts";

type Telling = Extract<StepMessage, { done: false }>;

/** Tells each thing once, however often a state is seen. */
export class Answer {
  readonly #id: string;
  readonly #say: (step: Telling) => void;
  #told: (string | number)[] = [];

  /** `id` is that of the request. */
  constructor(id: string, say: (step: Telling) => void) {
    this.#id = id;
    this.#say = say;
  }

  /** Tell what is new in the message; whether it has ended. */
  see(message: MessageState): boolean {
    message.content.forEach((block, index) => {
      if (block.type === "text") this.#text(index, block.text);
      else if (block.type === "tool") this.#tool(index, toolStep(message, block));
      else if (block.type === "notice" && this.#told[index] === undefined) this.#notice(index, block);
    });
    return answerStatus(message) !== "writing";
  }

  #text(index: number, text: string): void {
    const told = Number(this.#told[index] ?? 0);
    if (text.length <= told) return;
    this.#told[index] = text.length;
    this.#say({ type: "step", id: this.#id, done: false, text: text.slice(told) });
  }

  #tool(index: number, tool: ToolStep): void {
    const key = JSON.stringify([tool.state, tool.reason, tool.summary, tool.args]);
    if (this.#told[index] === key) return;
    this.#told[index] = key;
    this.#say({ type: "step", id: this.#id, done: false, tool });
  }

  #notice(index: number, { code, message }: { code: string; message: string }): void {
    this.#told[index] = code;
    this.#say({ type: "step", id: this.#id, done: false, notice: { code, message } });
  }
}

/** What names a call in a session: ids of models need not differ between runs. */
export function toolIdOf(message: Pick<MessageState, "id">, block: Pick<ToolBlock, "toolCallId">): string {
  return `${message.id}/${block.toolCallId}`;
}

function toolStep(message: MessageState, block: ToolBlock): ToolStep {
  const { tool, state, step, args, argsBlob, reason, summary, output, blob, durationMs } = block;
  const told = { toolId: toolIdOf(message, block), tool, state, step, args, argsBlob, reason, summary, output, blob, durationMs };
  return Object.fromEntries(Object.entries(told).filter(([, value]) => value !== undefined)) as ToolStep;
}
