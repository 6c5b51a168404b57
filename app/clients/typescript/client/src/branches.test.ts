import { describe, expect, test } from "vitest";

import type { BranchNode } from "./branches.ts";
import { leafBelow, pathTo, versionsOf } from "./branches.ts";

const user = (id: string, parentId?: string): BranchNode => ({ id, role: "user", ...(parentId && { parentId }) });
const answer = (id: string, parentId?: string): BranchNode => ({ id, role: "assistant", ...(parentId && { parentId }) });
const ids = (nodes: readonly BranchNode[]): string => nodes.map(({ id }) => id).join(" ");

/** A welcome, a question with two answers, the first of which has two ways on. */
const TREE = [answer("w"), user("q1", "w"), answer("a1", "q1"), user("q2", "a1"), answer("a2", "q2"), user("q2b", "a1"), answer("a2b", "q2b"), answer("a1b", "q1")];

describe("the path", () => {
  test("goes from the root through the leaf, and on along the newest children", () => {
    expect(ids(pathTo(TREE, "a2"))).toBe("w q1 a1 q2 a2");
    expect(ids(pathTo(TREE, "a1"))).toBe("w q1 a1 q2b a2b");
    expect(ids(pathTo(TREE, "a1b"))).toBe("w q1 a1b");
    expect(ids(pathTo(TREE, "w"))).toBe("w q1 a1b");
  });

  test("goes through the newest message if there is no leaf, or none that is known", () => {
    for (const leaf of [null, undefined, "gone"]) expect(ids(pathTo(TREE, leaf))).toBe("w q1 a1b");
    expect(pathTo([], "x")).toEqual([]);
  });

  test("has no message of a plan's step, whichever is the newest or the leaf", () => {
    const step = { planId: "p", stepId: "s", attempt: 1 };
    const tree = [...TREE, { ...user("task"), step }, { ...answer("work", "task"), step }];
    for (const leaf of [null, "task", "work"]) expect(ids(pathTo(tree, leaf))).toBe("w q1 a1b");
    expect(ids(pathTo(tree.slice(-2), null))).toBe("");
    expect(versionsOf([user("q"), ...tree], "q").map(({ id }) => id)).toEqual(["q"]);
  });

  test("begins where the parents are not loaded", () => {
    expect(ids(pathTo(TREE.slice(3), "a2"))).toBe("q2 a2");
  });

  test("ends where it would go in circles", () => {
    const circle = [user("a", "c"), answer("b", "a"), user("c", "b")];
    expect(pathTo(circle, "b").length).toBe(3);
    expect(ids(pathTo([user("self", "self")], "self"))).toBe("self");
  });
});

describe("the versions of a message", () => {
  test("are its siblings of the same role, oldest first", () => {
    expect(ids(versionsOf(TREE, "a1b"))).toBe("a1 a1b");
    expect(ids(versionsOf(TREE, "q2"))).toBe("q2 q2b");
    expect(ids(versionsOf(TREE, "a2"))).toBe("a2");
    expect(ids(versionsOf([answer("w"), user("one"), user("two")], "one"))).toBe("one two");
  });

  test("keep together though their parent is not loaded, and are none of what is not there", () => {
    expect(ids(versionsOf([user("q", "far"), user("p", "far"), user("r", "farther")], "p"))).toBe("q p");
    expect(versionsOf(TREE, "gone")).toEqual([]);
  });
});

test("the leaf below a message is the end of the newest branch", () => {
  expect(leafBelow(TREE, "a1")?.id).toBe("a2b");
  expect(leafBelow(TREE, "q2")?.id).toBe("a2");
  expect(leafBelow(TREE, "a2")?.id).toBe("a2");
  expect(leafBelow(TREE, "gone")).toBeNull();
});

test("ten thousand messages are looked through once, not once for each", () => {
  const chain = Array.from({ length: 10_000 }, (_, at) => (at % 2 ? answer(`m${at}`, `m${at - 1}`) : user(`m${at}`, at ? `m${at - 1}` : undefined)));
  let reads = 0;
  const counted = chain.map((node) => ({ ...node, get id() { reads++; return node.id; } })); // prettier-ignore
  expect(pathTo(counted, "m5000").length).toBe(10_000);
  for (const { id } of chain) versionsOf(counted, id);
  expect(reads).toBeLessThan(20 * chain.length);
});
