// Branches: messages are a forest by `parentId`, and what is shown is one path through it, from a root to a leaf.
//
// Messages come in the order in which they were made, so of several children the last is the newest. Nothing is
// supposed of what comes over the wire: parents may be missing (not loaded yet), and cycles end nothing but the walk.

/** What of a message counts for branches. */
export interface Linked {
  readonly id: string;
  readonly parentId?: string;
  readonly role: string;
}

interface Forest<Node extends Linked> {
  readonly byId: ReadonlyMap<string, Node>;
  readonly children: ReadonlyMap<string | undefined, readonly Node[]>;
}

/** Forests by the arrays that they are of, which are values: so that many questions about one state look through it once. */
const forests = new WeakMap<readonly Linked[], Forest<Linked>>();

/**
 * The path through the message `leaf`: from its root down to it, then on along the newest children. Without a `leaf`, or
 * with one that is not there, the path through the newest message.
 */
export function pathTo<Node extends Linked>(messages: readonly Node[], leaf: string | null | undefined): Node[] {
  const forest = forestOf(messages);
  const start = forest.byId.get(leaf ?? "") ?? messages.at(-1);
  if (start === undefined) return [];
  const up = walk(start, (node) => (node.parentId === undefined ? undefined : forest.byId.get(node.parentId)));
  const down = walk(start, (node) => forest.children.get(node.id)?.at(-1), new Set(up));
  return [...up.reverse(), ...down.slice(1)];
}

/** The messages that stand in the place of this one on the several branches, itself included: of the same parent and role, oldest first. */
export function versionsOf<Node extends Linked>(messages: readonly Node[], id: string): Node[] {
  const forest = forestOf(messages);
  const message = forest.byId.get(id);
  if (message === undefined) return [];
  const siblings = forest.children.get(message.parentId) ?? [];
  return siblings.filter((sibling) => sibling.role === message.role);
}

/** The message at the end of the newest branch below this one, itself if nothing follows it; null if it is not there. */
export function leafBelow<Node extends Linked>(messages: readonly Node[], id: string): Node | null {
  const forest = forestOf(messages);
  const start = forest.byId.get(id);
  if (start === undefined) return null;
  return walk(start, (node) => forest.children.get(node.id)?.at(-1)).at(-1) ?? null;
}

/** The nodes from `start` on, each one found by the one before, until there is none or one that was `seen`. */
function walk<Node extends Linked>(start: Node, step: (node: Node) => Node | undefined, seen = new Set<Node>()): Node[] {
  const path = [start];
  seen.add(start);
  for (let next = step(start); next !== undefined && !seen.has(next); next = step(next)) {
    path.push(next);
    seen.add(next);
  }
  return path;
}

function forestOf<Node extends Linked>(messages: readonly Node[]): Forest<Node> {
  const known = forests.get(messages) as Forest<Node> | undefined;
  if (known) return known;
  const children = new Map<string | undefined, Node[]>();
  for (const message of messages) {
    const siblings = children.get(message.parentId);
    if (siblings) siblings.push(message);
    else children.set(message.parentId, [message]);
  }
  const forest = { byId: new Map(messages.map((message) => [message.id, message])), children };
  forests.set(messages, forest);
  return forest;
}
