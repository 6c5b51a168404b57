// Plans: the bar in all states, the panel, and forms.

import type { PlanEntry } from "@khala/client";

import { panelState } from "../../src/plans/panel-state.svelte.ts";
import { Refusal, type Responses } from "../responses.ts";
import { AGENTS } from "../fixtures/agents.ts";
import { idOf, inMinutes } from "../fixtures/ids.ts";
import { call, writing } from "../fixtures/messages.ts";
import { plan, planResponses, PLAN_ID } from "../fixtures/plans.ts";
import { component, type GalleryState, type Group, type Scenario } from "../state.ts";
import Bars from "../views/PlanBars.svelte";
import Plans from "../views/Plans.svelte";

const view = component(Plans, {});
const agents: Responses = { "GET /api/agents": { items: [...AGENTS] } };
const ASKING = writing(20, [call(1, "delete_file", { state: "blocked", digest: "d", args: { path: "queue.py" }, expiresAt: inMinutes(9) })], { step: { planId: PLAN_ID, stepId: "s3", attempt: 1 } });

const BARS: readonly Partial<PlanEntry>[] = [
  { status: "idle", iteration: 0, spent: {} },
  {},
  { status: "pausing" },
  { status: "paused", reason: "requested" },
  { status: "paused", reason: "step_failed", counts: { ...plan().counts, failed: 1 } },
  { status: "paused", reason: "no_progress" },
  { status: "paused", reason: "budget", spent: { usd: "2.01" } },
  { status: "paused", reason: "all_limited" },
  { status: "paused", reason: "access" },
  { status: "stopping" },
  { status: "stopped", reason: "completed" },
  { status: "stopped", reason: "max_iterations" },
];

function bar(name: string, changes: Partial<PlanEntry>, scenario: Scenario = {}): GalleryState {
  const entry = plan(changes);
  return { name, view, scenario: { plans: [entry], ...scenario, responses: { ...agents, ...planResponses(entry) } } };
}

function panel(name: string, changes: Partial<PlanEntry>, height: number, scenario: Scenario = {}): GalleryState {
  return { ...bar(name, changes, scenario), height, prepare: () => panelState.open(PLAN_ID) };
}

const states: readonly GalleryState[] = [
  { name: "bars", view: component(Bars, {}), scenario: { plans: BARS.map((changes, at) => plan({ id: idOf(7100 - at), title: `Plan ${at + 1}`, ...changes })) } },
  bar("running with a fallback", { agent: "reviewer", agentReason: "rate_limited" }),
  bar("paused for review", { status: "paused", reason: "review", mode: "step" }),
  bar("a step needs approval", {}, { messages: [ASKING], hasMore: true }),
  bar("only to read", {}, { role: "viewer", thread: { visibility: "link" } }),
  panel("the panel", { counts: { ...plan().counts, failed: 1, blocked: 1 } }, 1000),
  { ...panel("a step is open", { status: "paused", reason: "requested" }, 1100), act: (driver) => driver.press('[data-step="s2"] .head') },
  { ...panel("a step is being edited", { status: "paused", reason: "requested" }, 1400), prepare: () => panelState.open(PLAN_ID, "s6"), act: (driver) => driver.press('[data-step="s6"] .controls button:nth-of-type(3)') },
  { ...panel("the panel of a plan that has ended", { status: "stopped", reason: "error", counts: { ...plan().counts, running: 0, failed: 1 } }, 900) },
  { ...panel("the steps cannot be loaded", {}, 320), scenario: { plans: [plan()], responses: { "GET /api/plans/*": new Refusal(403, "forbidden", "No."), "GET /api/plans/*/steps": new Refusal(403, "forbidden", "No.") } } },
  { name: "a new plan", view, height: 760, scenario: { responses: agents }, prepare: () => panelState.open() },
  { name: "a new plan by hand", view, height: 860, scenario: { responses: agents }, prepare: () => panelState.open(), act: (driver) => driver.press('[value="hand"]') },
];

export const plans: Group = { name: "plans", width: 640, states };
