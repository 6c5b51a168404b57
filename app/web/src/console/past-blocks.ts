// The blocks of a message's content as plain text.

import { formatBytes, humanize } from "./format.ts";
import type { PastBlock } from "./types.ts";

const MAX_CHARACTERS = 20_000;

/** A label for what is not prose, and the text. */
export interface BlockText {
  readonly label: string;
  readonly text: string;
}

export function textOfBlock(block: PastBlock): BlockText {
  switch (block.type) {
    case "text":
      return { label: "", text: shorten(asText(block.text)) };
    case "notice":
      return { label: "Notice", text: asText(block.message) };
    case "tool":
      return toolText(block);
    case "compaction":
      return { label: "Summary of older messages", text: shorten(asText(block.summary)) };
    case "file":
      return { label: "File", text: fileText(block.blob) };
    case "data":
      return { label: `Data ${asText(block.name)}`, text: shorten(asJson(block.data)) };
    default:
      return { label: humanize(block.type), text: "" };
  }
}

function toolText(block: PastBlock): BlockText {
  const label = `Tool ${asText(block.tool)} · ${humanize(asText(block.state))}`;
  const { args, output, summary } = block;
  const lines = [args == null ? "" : asJson(args), output == null ? asText(summary) : asJson(output)];
  return { label, text: shorten(lines.filter(Boolean).join("\n→ ")) };
}

function fileText(blob: unknown): string {
  if (typeof blob !== "object" || blob === null) return "";
  const { name, mediaType, size } = blob as { name?: unknown; mediaType?: unknown; size?: unknown };
  return [asText(name), asText(mediaType), typeof size === "number" ? formatBytes(size) : ""].filter(Boolean).join(" · ");
}

function asText(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function asJson(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function shorten(text: string): string {
  return text.length <= MAX_CHARACTERS ? text : `${text.slice(0, MAX_CHARACTERS)}… (${text.length - MAX_CHARACTERS} more characters)`;
}
