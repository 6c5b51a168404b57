// The fold: a message's content is its parts, folded in order, here exactly as on the server.
//
// The one law: folding parts k..n onto the content at k gives the content at n. So a reader that holds a message at any
// seq goes on with parts alone, and each part counts exactly once however often it arrives.

import type { BlobRef, Block, Part, ToolBlock, ToolStatus } from "./frames.ts";

/** The content after these parts; kinds that this version does not know change nothing. Blocks that don't change stay the same objects. */
export function fold(content: readonly Block[], parts: readonly Part[]): Block[] {
  const blocks = [...content];
  for (const part of parts) apply(blocks, part);
  return blocks;
}

/** The text of all text blocks, joined. */
export function textOf(message: { content: readonly Block[] }): string {
  return message.content.map((block) => (block.type === "text" ? block.text : "")).join("");
}

/** The files of a message. */
export function filesOf(message: { content: readonly Block[] }): BlobRef[] {
  return message.content.flatMap((block) => (block.type === "file" ? [block.blob] : []));
}

/** The tool calls of a content that wait for approval, or null if there are none. */
export function waiting(content: readonly Block[]): ToolBlock[] | null {
  const blocked = content.filter((block): block is ToolBlock => block.type === "tool" && block.state === "blocked");
  return blocked.length ? blocked : null;
}

function apply(blocks: Block[], part: Part): void {
  switch (part.kind) {
    case "text-delta":
      return appendText(blocks, part.data.text);
    case "tool-call": {
      const { toolCallId, tool, step, args, argsBlob } = part.data;
      return updateTool(blocks, toolCallId, { tool, step: counted(step), args, argsBlob });
    }
    case "tool-status":
      return updateTool(blocks, part.data.toolCallId, status(part.data));
    case "tool-result": {
      const { toolCallId, ok, summary, output, blob, durationMs } = part.data;
      return updateTool(blocks, toolCallId, { state: ok ? "completed" : "failed", summary, output, blob, durationMs });
    }
    case "notice":
      blocks.push({ type: "notice", code: part.data.code, message: part.data.message });
      return;
    case "compaction": {
      const { summary, messageId, step } = part.data;
      blocks.push(told({ type: "compaction", summary, messageId, step: counted(step) }));
      return;
    }
    default: // steps, failures, the finish and reasoning are no content, nor is what only later versions know
  }
}

/** Changes of a tool block; what is undefined is taken away. */
type Changes = { [Key in keyof ToolBlock]?: ToolBlock[Key] | undefined };

/** What a status says; only new arguments take the place of the old ones. */
function status({ state, reason, digest, expiresAt, args, argsBlob }: ToolStatus): Changes {
  const said = { state, reason, digest, expiresAt };
  return args === undefined && argsBlob === undefined ? said : { ...said, args, argsBlob };
}

function appendText(blocks: Block[], text: string): void {
  const last = blocks.at(-1);
  if (!text) return;
  if (last?.type === "text") blocks[blocks.length - 1] = { ...last, text: last.text + text };
  else blocks.push({ type: "text", text });
}

/** An orphan, a result whose call we never saw, shows rather than vanishes. */
function updateTool(blocks: Block[], toolCallId: string, changes: Changes): void {
  const index = blocks.findLastIndex((block) => block.type === "tool" && block.toolCallId === toolCallId);
  const before = index >= 0 ? blocks[index] : { type: "tool", toolCallId, tool: "unknown", state: "queued" };
  blocks[index >= 0 ? index : blocks.length] = told({ ...before, ...changes } as Loose<ToolBlock>);
}

/** A step of 0 is none, as on the wire. */
function counted(step: number | undefined): number | undefined {
  return step === 0 ? undefined : step;
}

type Loose<Whole> = { [Key in keyof Whole]: Whole[Key] | (undefined extends Whole[Key] ? undefined : never) };

/** Without the fields that have no value: on the wire they are left out, and so they are here. */
function told<Whole extends object>(loose: { [Key in keyof Whole]: Whole[Key] | undefined }): Whole {
  const present = Object.entries(loose).filter(([, value]) => value !== undefined && value !== null);
  return Object.fromEntries(present) as Whole;
}
