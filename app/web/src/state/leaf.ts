// Chooses which branch of a chat is shown: the one that ends at the leaf. The leaf moves on with new messages below it. It
// moves elsewhere only by an action of the person: choosing a version, sending, or regenerating.

import { pathTo } from "@khala/client";
import type { BranchNode } from "@khala/client";

/** The state before a change: the leaf, the end of the shown branch, and the ids of messages that the person waits for. */
type Before = { leaf: string | null; shownEnd: string | null; awaited: ReadonlySet<string> };

/** The leaf after a change; null means the newest message. */
export function leafAfter(nodes: readonly BranchNode[], { leaf, shownEnd, awaited }: Before, activeLeaf: string | null): string | null {
  const arrived = nodes.findLast(({ id }) => awaited.has(id));
  if (arrived) return arrived.id;
  const known = new Set(nodes.map(({ id }) => id));
  return [shownEnd, leaf, activeLeaf].find((id) => id !== null && known.has(id)) ?? null;
}

/** The parent that a send must name to continue the shown branch; undefined if the server chooses the same one by itself. */
export function parentFor(nodes: readonly BranchNode[], shownEnd: string | null, activeLeaf: string | null): string | undefined {
  const followed = pathTo(nodes, activeLeaf).at(-1)?.id ?? null;
  return shownEnd === null || shownEnd === followed ? undefined : shownEnd;
}
