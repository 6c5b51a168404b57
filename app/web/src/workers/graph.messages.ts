// What the worker that draws the graph of a run is told. It says nothing.

import type { GraphPatch } from "../autopilot/run-graph.ts";
import type { Colours, Size } from "../autopilot/graph-scene.ts";

/** `start` comes first, once; sizes are in CSS pixels, `still` asks for a picture without motion. */
export type ToGraph =
  | { type: "start"; canvas: OffscreenCanvas; size: Size; colours: Colours; still: boolean }
  | { type: "patch"; patch: GraphPatch }
  | { type: "size"; size: Size }
  | { type: "look"; colours: Colours; still: boolean };
