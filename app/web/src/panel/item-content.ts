// The content of a version of something that an answer made.

import type { BlobRef } from "@khala/client";
import type { ItemSource } from "./made-items.ts";

/** The content of larger files is not shown, only downloaded. */
export const MAX_SHOWN_BYTES = 2_000_000;

/** The text of a version. `read` downloads the text of a blob. Errors are those of `read`; SyntaxError for arguments that are not those of a file. */
export async function textOf(source: ItemSource, read: (blob: BlobRef) => Promise<string>): Promise<string> {
  // From the newest change back to the version that it builds on: a file has many changes, so no recursion.
  const changes: Extract<ItemSource, { type: "change" }>[] = [];
  let at = source;
  for (; at.type === "change"; at = at.before) changes.push(at);
  let text = at.type === "text" ? at.text : at.type === "blob" ? await read(at.blob) : contentOf(await read(at.blob));
  for (const { old, fresh, all } of changes.toReversed()) text = all ? text.replaceAll(old, () => fresh) : text.replace(old, () => fresh);
  return text;
}

/** The blob that a version needs; null if its text is at hand. */
export function blobOf(source: ItemSource): BlobRef | null {
  let at = source;
  while (at.type === "change") at = at.before;
  return at.type === "text" ? null : at.blob;
}

function contentOf(args: string): string {
  const parsed: unknown = JSON.parse(args);
  if (typeof parsed === "object" && parsed !== null && "content" in parsed && typeof parsed.content === "string") return parsed.content;
  throw new SyntaxError("The arguments have no content.");
}
