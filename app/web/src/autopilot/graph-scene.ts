// Draws a run's graph into a 2D context of any size. Nodes move smoothly to their places, and running nodes pulse.

import type { GraphEdge, GraphNode, GraphPatch, NodeState } from "./run-graph.ts";
import { fitToWindow, ROW, STEP_GAP, GraphLayout, type Point } from "./graph-layout.ts";

/** CSS colours: one for each state, and those of lines and labels. */
export type Colours = Readonly<Record<NodeState | "line" | "words" | "accent", string>>;

export type Size = { readonly width: number; readonly height: number; readonly ratio: number };

const MOVE_DURATION_MS = 240;
const PULSE_DURATION_MS = 1400;
const MARGIN = 24;
const RADII = { run: 9, step: 7, call: 5, tool: 6 } as const;
/** Labels are shown where nodes are at least this far apart. */
const MIN_LABEL_GAP_PX = { run: 46, step: 46, tool: 84 } as const;
/** With more calls the lines to their tools are omitted, because they would cross all others. */
const MAX_CALLS_WITH_TOOL_LINES = 8;
/** The distance between a label and the edges of the picture, or the next label. */
const LABEL_MARGIN_PX = 4;

type Shown = { node: GraphNode; from: Point; to: Point; since: number };

export class GraphScene {
  #shown = new Map<string, Shown>();
  #edges: GraphEdge[] = [];
  #layout = new GraphLayout();
  #size: Size = { width: 1, height: 1, ratio: 1 };
  #view = { scale: 1, x: 0, y: 0 };
  #viewed = false;
  #movesUntil = 0;
  #running = 0;
  /** Draw without animation. */
  still = false;

  constructor(public colours: Colours) {}

  resize(size: Size): void {
    this.#size = size;
    this.#viewed = false;
  }

  /** Apply a patch at the time `now`, in ms. */
  apply(patch: GraphPatch, now: number): void {
    if (patch.whole) this.#clear();
    for (const node of patch.nodes) this.#addNode(node, now);
    for (const edge of patch.edges) this.#edges.push(edge);
    this.#moveNodes(now);
  }

  /** Whether the next frame differs from the one at `now`. */
  isMoving(now: number): boolean {
    return !this.still && (now < this.#movesUntil || this.#running > 0 || !this.#viewed);
  }

  draw(context: OffscreenCanvasRenderingContext2D, now: number): void {
    this.#updateView(now);
    const { width, height, ratio } = this.#size;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    this.#drawEdges(context, now);
    for (const shown of this.#shown.values()) this.#drawNode(context, shown, now);
  }

  #clear(): void {
    this.#shown.clear();
    this.#edges = [];
    this.#layout = new GraphLayout();
    this.#running = 0;
    this.#viewed = false;
  }

  #addNode(node: GraphNode, now: number): void {
    const known = this.#shown.get(node.id);
    this.#running += Number(node.state === "running") - Number(known?.node.state === "running");
    if (known) return void (known.node = node);
    this.#layout.add(node);
    const to = this.#layout.places.get(node.id) ?? { x: 0, y: 0 };
    this.#shown.set(node.id, { node, from: { x: to.x - 20, y: to.y }, to, since: now });
    this.#movesUntil = now + MOVE_DURATION_MS;
  }

  /** Start the movement of nodes whose places have changed. */
  #moveNodes(now: number): void {
    for (const shown of this.#shown.values()) {
      const to = this.#layout.places.get(shown.node.id);
      if (!to || to === shown.to) continue;
      Object.assign(shown, { from: this.#at(shown, now), to, since: now });
      this.#movesUntil = now + MOVE_DURATION_MS;
    }
  }

  /** Move the view towards the graph, at once for the first frame. */
  #updateView(now: number): void {
    const aim = fitToWindow(this.#layout.box, this.#size, MARGIN);
    const share = this.still || !this.#viewed ? 1 : 0.2;
    this.#view = { scale: mix(this.#view.scale, aim.scale, share), x: mix(this.#view.x, aim.x, share), y: mix(this.#view.y, aim.y, share) };
    this.#viewed = true;
    if (Math.abs(this.#view.scale - aim.scale) > 0.002 || Math.abs(this.#view.x - aim.x) > 0.5) this.#movesUntil = Math.max(this.#movesUntil, now + 50);
  }

  #at({ from, to, since }: Shown, now: number): Point {
    const share = this.still ? 1 : Math.min(1, Math.max(0, (now - since) / MOVE_DURATION_MS));
    const eased = 1 - (1 - share) ** 3;
    return { x: mix(from.x, to.x, eased), y: mix(from.y, to.y, eased) };
  }

  #onScreen(shown: Shown, now: number): Point {
    const { x, y } = this.#at(shown, now);
    return { x: this.#view.scale * x + this.#view.x, y: this.#view.scale * y + this.#view.y };
  }

  /** One path for all lines, because a stroke for each would be the most expensive part. */
  #drawEdges(context: OffscreenCanvasRenderingContext2D, now: number): void {
    const few = this.#layout.callCount <= MAX_CALLS_WITH_TOOL_LINES;
    context.beginPath();
    for (const { from, to } of this.#edges) {
      const [one, other] = [this.#shown.get(from), this.#shown.get(to)];
      if (!one || !other || (!few && other.node.kind === "tool")) continue;
      const [start, end] = [this.#onScreen(one, now), this.#onScreen(other, now)];
      context.moveTo(start.x, start.y);
      // The calls of a step hang on its columns, so that their lines run together rather than across each other.
      if (other.node.kind === "call") {
        const turn = start.y + (this.#view.scale * ROW) / 2;
        context.lineTo(start.x, turn);
        context.lineTo(end.x, turn);
      }
      context.lineTo(end.x, end.y);
    }
    context.strokeStyle = this.colours.line;
    context.lineWidth = 1;
    context.globalAlpha = few ? 0.6 : 0.45;
    context.stroke();
    context.globalAlpha = 1;
  }

  #drawNode(context: OffscreenCanvasRenderingContext2D, shown: Shown, now: number): void {
    const { node } = shown;
    const { x, y } = this.#onScreen(shown, now);
    const radius = RADII[node.kind] * Math.min(1, Math.max(0.35, this.#view.scale));
    context.fillStyle = node.kind === "tool" ? this.colours.accent : this.colours[node.state];
    context.beginPath();
    if (node.kind === "tool") context.rect(x - radius, y - radius, 2 * radius, 2 * radius);
    else context.arc(x, y, radius * this.#breath(node.state, now), 0, 2 * Math.PI);
    context.fill();
    if (node.state === "failed" || node.state === "blocked" || node.state === "cancelled") this.#mark(context, { x, y, radius }, node.state);
    if (node.kind !== "call" && this.#apart(node.kind) >= MIN_LABEL_GAP_PX[node.kind]) this.#name(context, node, { x, y, radius });
  }

  #apart(kind: "run" | "step" | "tool"): number {
    return this.#view.scale * (kind === "tool" ? this.#layout.toolWidth : STEP_GAP);
  }

  #breath(state: NodeState, now: number): number {
    return state === "running" && !this.still ? 1 + 0.22 * Math.sin((2 * Math.PI * now) / PULSE_DURATION_MS) : 1;
  }

  /** Mark states that need attention by shape as well as by colour: a bar, a cross-bar, a ring. */
  #mark(context: OffscreenCanvasRenderingContext2D, at: { x: number; y: number; radius: number }, state: "failed" | "blocked" | "cancelled"): void {
    const reach = at.radius * 1.6;
    context.strokeStyle = this.colours[state];
    context.lineWidth = 1.5;
    context.beginPath();
    if (state === "blocked") context.arc(at.x, at.y, reach, 0, 2 * Math.PI);
    else context.moveTo(at.x - reach, at.y + reach);
    if (state !== "blocked") context.lineTo(at.x + reach, at.y - reach);
    if (state === "failed") {
      context.moveTo(at.x - reach, at.y - reach);
      context.lineTo(at.x + reach, at.y + reach);
    }
    context.stroke();
  }

  /** The label of a node within the picture, shortened to the room that it has. */
  #name(context: OffscreenCanvasRenderingContext2D, node: GraphNode, at: { x: number; y: number; radius: number }): void {
    const isTool = node.kind === "tool";
    context.fillStyle = this.colours.words;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = isTool ? "middle" : "alphabetic";
    const beside = at.x + at.radius + LABEL_MARGIN_PX;
    const widthOf = (text: string): number => context.measureText(text).width;
    const apart = this.#apart(isTool ? "tool" : "step") - LABEL_MARGIN_PX;
    const most = isTool ? Math.min(apart - 2 * at.radius - LABEL_MARGIN_PX, this.#size.width - LABEL_MARGIN_PX - beside) : apart;
    const words = shortened(node.label, most, widthOf);
    const centred = Math.min(at.x - widthOf(words) / 2, this.#size.width - LABEL_MARGIN_PX - widthOf(words));
    context.fillText(words, isTool ? beside : Math.max(LABEL_MARGIN_PX, centred), isTool ? at.y : at.y - at.radius - 5);
  }
}

/** The text if it is at most `most` wide, else its beginning with an ellipsis. */
export function shortened(text: string, most: number, widthOf: (text: string) => number): string {
  if (widthOf(text) <= most) return text;
  let [fits, more] = [0, text.length];
  while (more - fits > 1) {
    const half = Math.floor((fits + more) / 2);
    if (widthOf(`${text.slice(0, half)}…`) <= most) fits = half;
    else more = half;
  }
  return fits > 0 ? `${text.slice(0, fits)}…` : "";
}

function mix(one: number, other: number, share: number): number {
  return one + (other - one) * share;
}
