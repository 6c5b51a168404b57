import { describe, expect, test } from "vitest";

import type { Block } from "@khala/client";
import { buildGraph, isEmpty, MAX_DRAWN_CALLS, diffGraph, describeSteps, type GraphNode } from "./run-graph.ts";
import { fitToWindow, GraphLayout, MAX_ROWS_PER_COLUMN } from "./graph-layout.ts";
import { GraphScene, shortened, type Colours } from "./graph-scene.ts";

type State = Extract<Block, { type: "tool" }>["state"];

const call = (toolCallId: string, step: number, tool = "glob", state: State = "completed") => ({ block: { type: "tool", toolCallId, step, tool, state } satisfies Block });
const text = { block: { type: "text", text: "so" } satisfies Block };
const many = (count: number, step = 1) => Array.from({ length: count }, (_, index) => call(`${step}-${index}`, step));
const run = (blocks: readonly { block: Block }[], id = "r") => buildGraph({ id, blocks, running: true });

function placed(nodes: readonly GraphNode[]): GraphLayout {
  const layout = new GraphLayout();
  for (const node of nodes) layout.add(node);
  return layout;
}

describe("the graph", () => {
  test("has the run, its steps in order, their calls and each tool once", () => {
    const { nodes, edges } = run([text, call("a", 1), call("b", 1, "grep"), text, call("c", 2)]);
    expect(nodes.map(({ id }) => id)).toEqual(["run:r", "step:1", "call:a", "tool:glob", "call:b", "tool:grep", "step:2", "call:c"]);
    expect(edges).toContainEqual({ from: "run:r", to: "step:1" });
    expect(edges).toContainEqual({ from: "step:1", to: "step:2" });
    expect(edges).toContainEqual({ from: "call:c", to: "tool:glob" });
  });

  test("of an answer without tools is the run alone", () => {
    expect(run([text])).toEqual({ nodes: [expect.objectContaining({ kind: "run", state: "running" })], edges: [] });
  });

  test("says that a round waits only when nothing else of it runs", () => {
    const stateOf = (...states: State[]) => run(states.map((state, index) => call(`${index}`, 1, "glob", state))).nodes[1]?.state;
    expect(stateOf("blocked", "running")).toBe("running");
    expect(stateOf("blocked", "completed")).toBe("blocked");
    expect(stateOf("failed", "completed")).toBe("completed");
    expect(stateOf("failed", "failed")).toBe("failed");
  });

  test("is bounded", () => {
    expect(run(many(MAX_DRAWN_CALLS + 5)).nodes.filter(({ kind }) => kind === "call")).toHaveLength(MAX_DRAWN_CALLS);
  });

  test("tells in a patch only what has changed, and all of another run", () => {
    const before = run([call("a", 1, "glob", "running")]);
    const after = run([call("a", 1, "glob", "completed"), call("b", 1)]);
    const patch = diffGraph(before, after);
    expect(patch.whole).toBe(false);
    expect(patch.nodes.map(({ id }) => id)).toEqual(["step:1", "call:a", "call:b"]);
    expect(patch.edges).toEqual([{ from: "step:1", to: "call:b" }, { from: "call:b", to: "tool:glob" }]);
    expect(isEmpty(diffGraph(after, after))).toBe(true);
    expect(diffGraph(after, run([], "other")).whole).toBe(true);
  });

  test("is told in words, too", () => {
    expect(describeSteps(run([call("a", 1), call("b", 1, "glob", "blocked"), call("c", 1, "grep", "failed")]))).toEqual(["Step 1: 2 of 3 calls finished (glob ×2, grep), waiting for approval"]);
  });
});

describe("the layout", () => {
  test("gives each node a place of its own", () => {
    const { nodes } = run([...many(40, 1), ...many(30, 2), call("x", 3, "grep")]);
    const places = [...placed(nodes).places.values()].map(({ x, y }) => `${x},${y}`);
    expect(new Set(places).size).toBe(nodes.length);
  });

  test("built piece by piece is as built at once", () => {
    const graph = run([...many(5, 1), ...many(3, 2)]);
    const late = run([...many(MAX_ROWS_PER_COLUMN + 4, 1), ...many(3, 2)]).nodes;
    const layout = placed(graph.nodes);
    for (const node of late) layout.add(node);
    expect(Object.fromEntries(layout.places)).toEqual(Object.fromEntries(placed(late).places));
  });

  test("moves nothing to the left of where something was added", () => {
    const layout = placed(run([...many(5, 1), ...many(3, 2)]).nodes);
    const before = [...layout.places].filter(([id]) => !id.startsWith("call:2-"));
    layout.add({ id: "call:new", kind: "call", label: "glob", state: "queued", stepIndex: 1 });
    for (const [id, place] of before) expect(layout.places.get(id)).toEqual(place);
  });

  test("keeps steps from left to right, whatever their width", () => {
    const layout = placed(run([...many(100, 1), ...many(50, 2), ...many(1, 3)]).nodes);
    const right = Math.max(...many(100, 1).map((_, index) => layout.places.get(`call:1-${index}`)?.x ?? Infinity));
    expect(layout.places.get("step:2")?.x).toBeGreaterThan(right);
    expect(layout.box.right).toBeGreaterThanOrEqual(layout.places.get("step:3")?.x ?? Infinity);
  });

  test("refuses a call whose round is not there", () => {
    expect(() => new GraphLayout().add({ id: "call:a", kind: "call", label: "glob", state: "queued", stepIndex: 0 })).toThrow(RangeError);
  });

  test("fits its box into any window", () => {
    const box = { left: 0, top: 0, right: 1000, bottom: 300 };
    for (const window of [{ width: 320, height: 180 }, { width: 1200, height: 90 }, { width: 1, height: 1 }]) {
      const { scale, x, y } = fitToWindow(box, window, 20);
      expect(scale).toBeGreaterThan(0);
      expect(scale * 1000 + x).toBeLessThanOrEqual(Math.max(window.width, 21));
      expect(y).toBeLessThanOrEqual(window.height);
    }
  });
});

describe("the scene", () => {
  const colours = Object.fromEntries(["idle", "queued", "running", "completed", "failed", "blocked", "cancelled", "line", "words", "accent"].map((name) => [name, "#000"])) as Colours;

  test("rests when nothing runs and everything is in its place, and never moves where motion is unwanted", () => {
    const scene = new GraphScene(colours);
    scene.apply(diffGraph(null, buildGraph({ id: "r", blocks: many(3), running: false })), 0);
    expect(scene.isMoving(0)).toBe(true);
    scene.draw(pad(), 1000);
    scene.draw(pad(), 2000);
    expect(scene.isMoving(2000)).toBe(false);
    scene.apply(diffGraph(null, run(many(3))), 3000);
    scene.draw(pad(), 4000);
    expect(scene.isMoving(5000)).toBe(true);
    scene.still = true;
    expect(scene.isMoving(5000)).toBe(false);
  });

  test("draws 500 nodes, each once", () => {
    const scene = new GraphScene(colours);
    scene.resize({ width: 800, height: 240, ratio: 2 });
    scene.apply(diffGraph(null, run(Array.from({ length: 20 }, (_, step) => many(24, step + 1)).flat())), 0);
    const drawn = pad();
    scene.draw(drawn, 1000);
    expect(drawn.counts.fill).toBe(1 + 20 + 480 + 1);
    expect(drawn.counts.stroke).toBe(1);
  });

  test("shortens a label to its room, and leaves it out where there is none", () => {
    const widthOf = (text: string): number => 6 * text.length;
    expect([shortened("glob", 24, widthOf), shortened("search_archive", 60, widthOf), shortened("glob", 5, widthOf)]).toEqual(["glob", "search_ar…", ""]);
  });

  /** A context that counts what is drawn. */
  function pad(): OffscreenCanvasRenderingContext2D & { counts: Record<string, number> } {
    const counts: Record<string, number> = {};
    const known: Record<string, unknown> = { counts };
    return new Proxy(known, {
      get: (target, name: string) => target[name] ?? ((text?: unknown) => name === "measureText" ? { width: 6 * String(text).length } : (counts[name] = (counts[name] ?? 0) + 1)),
      set: () => true,
    }) as unknown as OffscreenCanvasRenderingContext2D & { counts: Record<string, number> };
  }
});
