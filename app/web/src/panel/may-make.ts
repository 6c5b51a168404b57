// Whether the side panel may have something of an answer. Small, because it comes with the page.

import type { MessageView } from "../state/page-model.ts";

/** Whether an answer may have made something, without reading all of it. */
export function mayMake(blocks: MessageView["blocks"]): boolean {
  return blocks.some(({ block }) => block.type === "file" || (block.type === "tool" && (block.tool === "write_file" || block.tool === "edit_file")) || (block.type === "text" && /^ {0,3}(?:```|~~~)/m.test(block.text)));
}
