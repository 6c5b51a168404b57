// Which branch of a chat is shown: the one that ends at the leaf. The leaf moves on with what comes below it, and goes
// elsewhere only where the person goes: by a choice, a send or another answer of their own.

import { pathTo } from "../khala/branches.ts";
import type { BranchNode } from "../khala/branches.ts";

/** What there was before a change: the leaf, the end of the branch that was shown, and the ids of what the person waits to see. */
type Before = { leaf: string | null; shownEnd: string | null; awaited: ReadonlySet<string> };

/** Where the leaf is after a change; null is the newest message. */
export function leafAfter(nodes: readonly BranchNode[], { leaf, shownEnd, awaited }: Before, activeLeaf: string | null): string | null {
  const arrived = nodes.findLast(({ id }) => awaited.has(id));
  if (arrived) return arrived.id;
  const known = new Set(nodes.map(({ id }) => id));
  return [shownEnd, leaf, activeLeaf].find((id) => id !== null && known.has(id)) ?? null;
}

/** What a send has to name as its parent so that it follows what is shown: nothing where the server would do that by itself. */
export function parentFor(nodes: readonly BranchNode[], shownEnd: string | null, activeLeaf: string | null): string | undefined {
  const followed = pathTo(nodes, activeLeaf).at(-1)?.id ?? null;
  return shownEnd === null || shownEnd === followed ? undefined : shownEnd;
}
