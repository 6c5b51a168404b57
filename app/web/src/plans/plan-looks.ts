// How plans and their steps look in each state: icons and tones.

import type { PlanEntry } from "@khala/client";

/** A share of a limit that deserves attention. */
export const NEAR_SHARE = 0.8;

/** Paths of the icons of steps, in a box of 20 by 20. */
export const STEP_ICONS = {
  open: "",
  running: "M10 3.5a6.5 6.5 0 1 1-6.5 6.5",
  completed: "M5 10.5l3.5 3.5L15 6.5",
  failed: "M5.5 5.5l9 9M14.5 5.5l-9 9",
  skipped: "M4.5 5.5 9 10l-4.5 4.5M10.5 5.5 15 10l-4.5 4.5",
  cancelled: "M5 15 15 5",
  blocked: "M6 9V7a4 4 0 0 1 8 0v2M5 9h10v7H5z",
  asking: "M10 4v7M10 15.5v.01",
} as const;

type PlanLook = "idle" | "running" | "waiting" | "paused" | "needed" | "completed" | "interrupted" | "failed";
type BarLook = { icon: string; tone: "on" | "off" | "warn" | "good" | "bad"; isTurning?: boolean };
/** How the bar of a plan looks. */
export const PLAN_ICONS: Readonly<Record<PlanLook, BarLook>> = {
  idle: { icon: "M10 4.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11z", tone: "off" },
  running: { icon: STEP_ICONS.running, tone: "on", isTurning: true },
  waiting: { icon: "M10 4a6 6 0 1 0 0 12 6 6 0 0 0 0-12zM10 7v3.2l2.2 1.3", tone: "on" },
  paused: { icon: "M7.5 5.5v9M12.5 5.5v9", tone: "off" },
  needed: { icon: STEP_ICONS.asking, tone: "warn" },
  completed: { icon: STEP_ICONS.completed, tone: "good" },
  interrupted: { icon: "M6 6h8v8H6z", tone: "off" },
  failed: { icon: STEP_ICONS.failed, tone: "bad" },
};

/** How a plan that needs nobody looks. */
export function planLook({ status, reason }: Pick<PlanEntry, "status" | "reason">): PlanLook {
  if (status === "stopped") return reason === "completed" ? "completed" : reason === "interrupted" ? "interrupted" : "failed";
  return status === "pausing" || status === "stopping" ? "running" : status;
}
