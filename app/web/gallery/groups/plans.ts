// Plans: the bar in all states, the panel, and forms.

import type { PlanEntry } from "@khala/client";

import { panelState } from "../../src/plans/panel-state.svelte.ts";
import { Refusal, type Responses } from "../responses.ts";
import { AGENTS } from "../fixtures/agents.ts";
import { idOf, inMinutes } from "../fixtures/ids.ts";
import { call, writing } from "../fixtures/messages.ts";
import { plan, planResponses, PLAN_ID, type Moment } from "../fixtures/plans.ts";
import type { PageDriver } from "../page-driver.ts";
import { component, type GalleryState, type Group, type Scenario } from "../state.ts";
import Bars from "../views/PlanBars.svelte";
import Plans from "../views/Plans.svelte";

const view = component(Plans, {});
const agents: Responses = { "GET /api/agents": { items: [...AGENTS] } };
const ASKING = writing(20, [call(1, "delete_file", { state: "blocked", digest: "d", args: { path: "queue.py" }, expiresAt: inMinutes(9) })], { step: { planId: PLAN_ID, stepId: "s3", attempt: 1 } });

const BARS: readonly (readonly [changes: Partial<PlanEntry>, moment: Moment])[] = [
  [{ status: "idle", iteration: 0, spent: {} }, "new"],
  [{}, "running"],
  [{ status: "pausing" }, "running"],
  [{ status: "paused", reason: "requested" }, "paused"],
  [{ status: "paused", reason: "step_failed" }, "failed"],
  [{ status: "paused", reason: "no_progress" }, "paused"],
  [{ status: "paused", reason: "budget", spent: { usd: "2.01" } }, "paused"],
  [{ status: "paused", reason: "all_limited" }, "paused"],
  [{ status: "paused", reason: "access" }, "paused"],
  [{ status: "stopping" }, "running"],
  [{ status: "stopped", reason: "completed", iteration: 9 }, "finished"],
  [{ status: "stopped", reason: "max_iterations", iteration: 20 }, "paused"],
];

function bar(name: string, changes: Partial<PlanEntry>, moment: Moment = "running", scenario: Scenario = {}): GalleryState {
  const entry = plan(changes, moment);
  return { name, view, scenario: { plans: [entry], ...scenario, responses: { ...agents, ...planResponses(entry, moment) } } };
}

function panel(name: string, changes: Partial<PlanEntry>, moment: Moment, height: number): GalleryState {
  return { ...bar(name, changes, moment), height, prepare: () => panelState.open(PLAN_ID) };
}

const PAUSED: Partial<PlanEntry> = { status: "paused", reason: "requested" };

const states: readonly GalleryState[] = [
  { name: "bars", view: component(Bars, {}), scenario: { plans: BARS.map(([changes, moment], at) => plan({ id: idOf(7100 - at), title: `Plan ${at + 1}`, ...changes }, moment)) } },
  bar("running with a fallback", { agent: "reviewer", agentReason: "rate_limited" }),
  bar("waiting to try a step again", {}, "retrying"),
  bar("paused because a step failed", { status: "paused", reason: "step_failed" }, "failed"),
  bar("paused for review", { status: "paused", reason: "review", mode: "step" }, "paused"),
  bar("a step needs approval", {}, "running", { messages: [ASKING], hasMore: true }),
  bar("only to read", {}, "running", { role: "viewer", thread: { visibility: "link" } }),
  panel("the panel", {}, "failing", 1000),
  panel("most of the budget is used, and a step is tried again", { spent: { usd: "1.70", tokens: 81_000, seconds: 940 } }, "retrying", 800),
  { ...panel("a step is open", PAUSED, "paused", 1100), act: (driver) => driver.press('[data-step="s2"] .head') },
  { ...panel("a step that failed, and its menu", { status: "paused", reason: "step_failed" }, "failed", 1100), act: openMenu },
  { ...panel("a step is being edited", PAUSED, "paused", 1400), prepare: () => panelState.open(PLAN_ID, "s6"), act: (driver) => driver.press('[data-step="s6"] .controls button:first-child') },
  panel("the panel of a plan that has ended", { status: "stopped", reason: "error" }, "failed", 900),
  { ...panel("the settings of a plan", PAUSED, "paused", 1500), act: (driver) => driver.press("details:has(.exports) summary") },
  { ...panel("the steps cannot be loaded", {}, "running", 320), scenario: { plans: [plan()], responses: { ...agents, "GET /api/plans/*": new Refusal(403, "forbidden", "No."), "GET /api/plans/*/steps": new Refusal(403, "forbidden", "No."), "GET /api/plans/*/events": { items: [] } } } },
  { name: "a new plan", view, height: 760, scenario: { responses: agents }, prepare: () => panelState.open() },
  { name: "a new plan by hand", view, height: 860, scenario: { responses: agents }, prepare: () => panelState.open(), act: (driver) => driver.press('[value="hand"]') },
];

async function openMenu(driver: PageDriver): Promise<void> {
  await driver.press('[data-step="s4"] .head');
  await driver.press('[data-step="s4"] [aria-haspopup="menu"]');
}

export const plans: Group = { name: "plans", width: 640, states };
