// Branches of a thread. Messages form a forest by `parentId`; a branch is one path through it, from a root to a leaf.
//
// Messages are in the order of their creation, so the last of several children is the newest. The functions tolerate any
// input: parents may be missing because they are not loaded yet, and a cycle ends the walk. The messages of a plan's steps
// belong to no branch.

/** The fields of a message that define its place in the forest. */
export interface BranchNode {
  readonly id: string;
  readonly parentId?: string;
  readonly role: string;
  /** Set for the messages of a plan's step. */
  readonly step?: unknown;
}

interface Forest<Node extends BranchNode> {
  readonly byId: ReadonlyMap<string, Node>;
  readonly children: ReadonlyMap<string | undefined, readonly Node[]>;
}

/** Forests by message array. Arrays are never changed in place, so each is indexed once. */
const forestCache = new WeakMap<readonly BranchNode[], Forest<BranchNode>>();

/**
 * The branch through the message `leaf`: from its root down to it, then on along the newest children. Without a `leaf`, or
 * with an unknown one, the branch through the newest message.
 */
export function pathTo<Node extends BranchNode>(messages: readonly Node[], leaf: string | null | undefined): Node[] {
  const forest = forestOf(messages);
  const start = forest.byId.get(leaf ?? "") ?? messages.findLast(({ step }) => step === undefined);
  if (start === undefined) return [];
  const up = walk(start, (node) => (node.parentId === undefined ? undefined : forest.byId.get(node.parentId)));
  const down = walk(start, (node) => forest.children.get(node.id)?.at(-1), new Set(up));
  return [...up.reverse(), ...down.slice(1)];
}

/** The alternative versions of a message, itself included: messages with the same parent and role, oldest first. */
export function versionsOf<Node extends BranchNode>(messages: readonly Node[], id: string): Node[] {
  const forest = forestOf(messages);
  const message = forest.byId.get(id);
  if (message === undefined) return [];
  const siblings = forest.children.get(message.parentId) ?? [];
  return siblings.filter((sibling) => sibling.role === message.role);
}

/** The last message of the newest branch below this message, itself if nothing follows it; null if it is unknown. */
export function leafBelow<Node extends BranchNode>(messages: readonly Node[], id: string): Node | null {
  const forest = forestOf(messages);
  const start = forest.byId.get(id);
  if (start === undefined) return null;
  return walk(start, (node) => forest.children.get(node.id)?.at(-1)).at(-1) ?? null;
}

/** The nodes from `start` on, each found by `step` from the one before, until there is none or one in `seen`. */
function walk<Node extends BranchNode>(start: Node, step: (node: Node) => Node | undefined, seen = new Set<Node>()): Node[] {
  const path = [start];
  seen.add(start);
  for (let next = step(start); next !== undefined && !seen.has(next); next = step(next)) {
    path.push(next);
    seen.add(next);
  }
  return path;
}

function forestOf<Node extends BranchNode>(messages: readonly Node[]): Forest<Node> {
  const known = forestCache.get(messages) as Forest<Node> | undefined;
  if (known) return known;
  const children = new Map<string | undefined, Node[]>();
  const own = messages.filter(({ step }) => step === undefined);
  for (const message of own) {
    const siblings = children.get(message.parentId);
    if (siblings) siblings.push(message);
    else children.set(message.parentId, [message]);
  }
  const forest = { byId: new Map(own.map((message) => [message.id, message])), children };
  forestCache.set(messages, forest);
  return forest;
}
