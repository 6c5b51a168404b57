// The layout of a run's graph: steps from left to right, the calls of each below it, the tools at the bottom.
//
// The layout is layered rather than force-directed, so that nodes don't move when something is added elsewhere. A new call takes
// the next free place of its step, and only the steps to the right of a wider step move.

import type { GraphNode } from "./run-graph.ts";

export type Point = { readonly x: number; readonly y: number };
type Box = { readonly left: number; readonly top: number; readonly right: number; readonly bottom: number };

/** Distances, in units of the drawing. */
export const ROW = 26;
const COLUMN = 30;
export const STEP_GAP = 64;
/** Calls of a step are arranged in columns of this height. */
export const MAX_ROWS_PER_COLUMN = 6;
/** The minimum width of a tool with its name. A wide graph spreads its tools over its width. */
const MIN_TOOL_WIDTH = 110;
const TOOLS_IN_A_ROW = 4;

type StepColumn = { readonly id: string; readonly calls: string[] };

/** The places of nodes by id. Adding a call to the last step takes constant time. */
export class GraphLayout {
  readonly places = new Map<string, Point>();
  #steps: StepColumn[] = [];
  #starts: number[] = [];
  #tools: string[] = [];
  #rows = 0;
  #right = 0;
  /** The width of the steps, without the tools. */
  #wide = 0;

  /** Place a node that has no place yet. The step of a call must be placed before it. */
  add(node: GraphNode): void {
    if (this.places.has(node.id)) return;
    if (node.kind === "run") this.#put(node.id, { x: 0, y: 0 });
    else if (node.kind === "step") this.#addStep(node);
    else if (node.kind === "call") this.#addCall(node);
    else this.#addTool(node);
  }

  /** The bounding box of all places; a point at the origin if there are none. */
  get box(): Box {
    const last = this.#tools.at(-1);
    const bottom = last === undefined ? this.#rows * ROW : (this.places.get(last)?.y ?? 0);
    // The names of tools stand beside them.
    return { left: 0, top: 0, right: Math.max(this.#right, this.#toolsRight), bottom };
  }

  /** How many calls there are. */
  get callCount(): number {
    return this.#steps.reduce((sum, { calls }) => sum + calls.length, 0);
  }

  /** The distance between tools. */
  get toolWidth(): number {
    return Math.max(MIN_TOOL_WIDTH, this.#wide / Math.min(Math.max(this.#tools.length, 1), TOOLS_IN_A_ROW));
  }

  #addStep({ id }: GraphNode): void {
    const before = this.#steps.length - 1;
    this.#starts.push(before < 0 ? STEP_GAP : (this.#starts[before] ?? 0) + widthOf(this.#steps[before]));
    this.#steps.push({ id, calls: [] });
    this.#putInStep(id, { x: this.#starts[before + 1] ?? STEP_GAP, y: 0 });
    this.#settleTools();
  }

  #addCall({ id, stepIndex }: GraphNode): void {
    const own = this.#steps[stepIndex];
    if (!own) throw new RangeError(`Step ${stepIndex} of call ${id} is not there.`);
    const width = widthOf(own);
    own.calls.push(id);
    this.#putInStep(id, this.#placeOf(stepIndex, own.calls.length - 1));
    if (widthOf(own) > width) this.#shiftAfter(stepIndex);
    this.#rows = Math.max(this.#rows, Math.min(own.calls.length, MAX_ROWS_PER_COLUMN));
    this.#settleTools();
  }

  #addTool({ id }: GraphNode): void {
    this.#tools.push(id);
    this.#settleTools();
  }

  get #toolsRight(): number {
    return Math.min(this.#tools.length, TOOLS_IN_A_ROW) * this.toolWidth;
  }

  /** Move the tools whenever the graph becomes wider or higher; there are few of them. */
  #settleTools(): void {
    this.#tools.forEach((id, index) => {
      const row = this.#rows + 2 + Math.floor(index / TOOLS_IN_A_ROW);
      this.#put(id, { x: (index % TOOLS_IN_A_ROW) * this.toolWidth, y: row * ROW });
    });
  }

  #placeOf(stepIndex: number, index: number): Point {
    const x = (this.#starts[stepIndex] ?? 0) + Math.floor(index / MAX_ROWS_PER_COLUMN) * COLUMN;
    return { x, y: ((index % MAX_ROWS_PER_COLUMN) + 1) * ROW };
  }

  #shiftAfter(stepIndex: number): void {
    for (let next = stepIndex + 1; next < this.#steps.length; next++) {
      const own = this.#steps[next];
      if (!own) continue;
      this.#starts[next] = (this.#starts[next - 1] ?? 0) + widthOf(this.#steps[next - 1]);
      this.#putInStep(own.id, { x: this.#starts[next] ?? 0, y: 0 });
      own.calls.forEach((id, index) => this.#putInStep(id, this.#placeOf(next, index)));
    }
  }

  #put(id: string, place: Point): void {
    const before = this.places.get(id);
    if (before?.x === place.x && before.y === place.y) return;
    this.places.set(id, place);
    this.#right = Math.max(this.#right, place.x);
  }

  #putInStep(id: string, place: Point): void {
    this.#put(id, place);
    this.#wide = Math.max(this.#wide, place.x);
  }
}

function widthOf(step: StepColumn | undefined): number {
  const columns = Math.max(1, Math.ceil((step?.calls.length ?? 0) / MAX_ROWS_PER_COLUMN));
  return STEP_GAP + (columns - 1) * COLUMN;
}

/** The transform that fits a box into a window, scaled up to twice its size: screen = scale × place + shift. */
export function fitToWindow(box: Box, window: { width: number; height: number }, margin: number): { scale: number; x: number; y: number } {
  const [width, height] = [box.right - box.left, box.bottom - box.top];
  const room = { width: Math.max(1, window.width - 2 * margin), height: Math.max(1, window.height - 2 * margin) };
  const scale = Math.min(2, room.width / Math.max(width, 1), room.height / Math.max(height, 1));
  return { scale, x: (window.width - scale * width) / 2 - scale * box.left, y: (window.height - scale * height) / 2 - scale * box.top };
}
