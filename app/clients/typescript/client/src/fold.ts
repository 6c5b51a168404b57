// The fold: computes a message's content from its parts, exactly as the server does.
//
// Invariant: folding parts k..n onto the content at k gives the content at n. A reader that holds a message at any seq
// continues with parts alone, and each part counts exactly once, however often it arrives.

import type { BlobRef, Block, Part, ToolBlock, ToolStatus } from "./frames.ts";

/** The content after these parts. Unknown kinds of parts change nothing. Unchanged blocks stay the same objects. */
export function fold(content: readonly Block[], parts: readonly Part[]): Block[] {
  const blocks = [...content];
  for (const part of parts) applyPart(blocks, part);
  return blocks;
}

/** The joined text of all text blocks that are part of the answer. */
export function textOf(message: { content: readonly Block[] }): string {
  return withoutReplacedText(message.content, (block) => block)
    .map((block) => (block.type === "text" ? block.text : ""))
    .join("");
}

/** The items without text that did not fit the requested format: the model has written it again. */
export function withoutReplacedText<Item>(items: readonly Item[], blockOf: (item: Item) => Block): Item[] {
  let kept: Item[] = [];
  for (const item of items) {
    const block = blockOf(item);
    if (block.type === "notice" && block.code === "format_repair") {
      const lastCall = kept.findLastIndex((one) => blockOf(one).type === "tool");
      kept = kept.filter((one, at) => at <= lastCall || blockOf(one).type !== "text");
    }
    kept.push(item);
  }
  return kept;
}

/** The attached files of a message. */
export function filesOf(message: { content: readonly Block[] }): BlobRef[] {
  return message.content.flatMap((block) => (block.type === "file" ? [block.blob] : []));
}

/** The tool calls that wait for approval, or null if there are none. */
export function pendingApprovals(content: readonly Block[]): ToolBlock[] | null {
  const blocked = content.filter((block): block is ToolBlock => block.type === "tool" && block.state === "blocked");
  return blocked.length ? blocked : null;
}

function applyPart(blocks: Block[], part: Part): void {
  switch (part.kind) {
    case "text-delta":
      return appendText(blocks, part.data.text);
    case "tool-call": {
      const { toolCallId, tool, step, args, argsBlob } = part.data;
      return updateTool(blocks, toolCallId, { tool, step: nonZero(step), args, argsBlob });
    }
    case "tool-status":
      return updateTool(blocks, part.data.toolCallId, statusChanges(part.data));
    case "tool-result": {
      const { toolCallId, ok, summary, output, blob, durationMs } = part.data;
      return updateTool(blocks, toolCallId, { state: ok ? "completed" : "failed", summary, output, blob, durationMs });
    }
    case "notice":
      blocks.push({ type: "notice", code: part.data.code, message: part.data.message, ...(part.data.until !== undefined && { until: part.data.until }) });
      return;
    case "compaction": {
      const { summary, messageId, step } = part.data;
      blocks.push(withoutMissing({ type: "compaction", summary, messageId, step: nonZero(step) }));
      return;
    }
    default: // steps, errors, the finish, reasoning and unknown kinds of later versions are no content
  }
}

/** Changes of a tool block. A field that is undefined is removed. */
type Changes = { [Key in keyof ToolBlock]?: ToolBlock[Key] | undefined };

/** The changes of a `tool-status` part. The block keeps its arguments unless the part has new ones. */
function statusChanges({ state, reason, digest, expiresAt, args, argsBlob }: ToolStatus): Changes {
  const changes = { state, reason, digest, expiresAt };
  return args === undefined && argsBlob === undefined ? changes : { ...changes, args, argsBlob };
}

function appendText(blocks: Block[], text: string): void {
  const last = blocks.at(-1);
  if (!text) return;
  if (last?.type === "text") blocks[blocks.length - 1] = { ...last, text: last.text + text };
  else blocks.push({ type: "text", text });
}

/** Update the newest block of this call. A result without a known call is shown as a block of its own. */
function updateTool(blocks: Block[], toolCallId: string, changes: Changes): void {
  const index = blocks.findLastIndex((block) => block.type === "tool" && block.toolCallId === toolCallId);
  const before = index >= 0 ? blocks[index] : { type: "tool", toolCallId, tool: "unknown", state: "queued" };
  blocks[index >= 0 ? index : blocks.length] = withoutMissing({ ...before, ...changes } as Loose<ToolBlock>);
}

/** On the wire, step 0 means no step. */
function nonZero(step: number | undefined): number | undefined {
  return step === 0 ? undefined : step;
}

type Loose<Whole> = { [Key in keyof Whole]: Whole[Key] | (undefined extends Whole[Key] ? undefined : never) };

/** Remove fields without a value, as the wire format does. */
function withoutMissing<Whole extends object>(loose: { [Key in keyof Whole]: Whole[Key] | undefined }): Whole {
  const present = Object.entries(loose).filter(([, value]) => value !== undefined && value !== null);
  return Object.fromEntries(present) as Whole;
}
