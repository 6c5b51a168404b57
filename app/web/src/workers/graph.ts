// The graph worker: draws the graph of a run onto an offscreen canvas, only while something changes.

import { GraphScene, type Size } from "../autopilot/graph-scene.ts";
import type { ToGraph } from "./graph.messages.ts";

type Stage = { canvas: OffscreenCanvas; context: OffscreenCanvasRenderingContext2D; scene: GraphScene };

let stage: Stage | null = null;
let isFrameRequested = false;

self.addEventListener("message", ({ data }: MessageEvent<ToGraph>) => {
  if (data.type === "start") stage = createStage(data);
  else if (stage) receive(stage, data);
  if (stage) requestFrame(stage);
});

function createStage({ canvas, size, colours, still }: Extract<ToGraph, { type: "start" }>): Stage {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("There is no 2D context for the graph.");
  const begun = { canvas, context, scene: new GraphScene(colours) };
  begun.scene.still = still;
  resize(begun, size);
  return begun;
}

function receive(on: Stage, message: Exclude<ToGraph, { type: "start" }>): void {
  if (message.type === "patch") on.scene.apply(message.patch, performance.now());
  else if (message.type === "size") resize(on, message.size);
  else Object.assign(on.scene, { colours: message.colours, still: message.still });
}

function resize({ canvas, scene }: Stage, size: Size): void {
  canvas.width = Math.max(1, Math.round(size.width * size.ratio));
  canvas.height = Math.max(1, Math.round(size.height * size.ratio));
  scene.resize(size);
}

/** All changes within one animation frame are drawn together. */
function requestFrame(on: Stage): void {
  if (isFrameRequested) return;
  isFrameRequested = true;
  requestAnimationFrame(() => {
    isFrameRequested = false;
    const now = performance.now();
    on.scene.draw(on.context, now);
    if (on.scene.isMoving(now)) requestFrame(on);
  });
}
