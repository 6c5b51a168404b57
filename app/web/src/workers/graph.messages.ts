// The messages to the graph worker. The worker sends none.

import type { GraphPatch } from "../autopilot/run-graph.ts";
import type { Colours, Size } from "../autopilot/graph-scene.ts";

/** `start` comes first, once. Sizes are in CSS pixels. `still` disables animation. */
export type ToGraph =
  | { type: "start"; canvas: OffscreenCanvas; size: Size; colours: Colours; still: boolean }
  | { type: "patch"; patch: GraphPatch }
  | { type: "size"; size: Size }
  | { type: "look"; colours: Colours; still: boolean };
