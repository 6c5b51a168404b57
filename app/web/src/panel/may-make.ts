// Whether the side panel may have something of an answer. Small, because it comes with the page.

import type { BlobRef } from "@khala/client";
import type { MessageView } from "../state/page-model.ts";

/** Whether an answer may have made something, without reading all of it. */
export function mayMake(blocks: MessageView["blocks"]): boolean {
  return blocks.some(({ block }) => block.type === "file" || (block.type === "tool" && (block.tool === "write_file" || block.tool === "edit_file")) || (block.type === "text" && /^ {0,3}(?:```|~~~)/m.test(block.text)));
}

/** Whether the side panel shows the content of a file, so that a finished answer shows the button for it in place of its card. */
export function opensInPanel({ mediaType }: BlobRef): boolean {
  return /^text\/|json|^application\/pdf/i.test(mediaType);
}
