// A run as a graph: the run, its steps, the calls of each step, and the tools that they use.

import type { Block } from "@khala/client";
import { m } from "../i18n/messages.ts";

type NodeKind = "run" | "step" | "call" | "tool";
export type NodeState = "idle" | "queued" | "running" | "completed" | "failed" | "blocked" | "cancelled";

/** `stepIndex` counts steps from 0 in order of appearance. It is 0 for the run and for tools, which belong to no step. */
export interface GraphNode {
  readonly id: string;
  readonly kind: NodeKind;
  readonly label: string;
  readonly state: NodeState;
  readonly stepIndex: number;
}

export interface GraphEdge {
  readonly from: string;
  readonly to: string;
}

export interface Graph {
  readonly nodes: readonly GraphNode[];
  readonly edges: readonly GraphEdge[];
}

/** The changes of a graph. A `whole` patch replaces the previous graph. */
export interface GraphPatch extends Graph {
  readonly whole: boolean;
}

/** Further calls are not drawn: a picture of thousands of calls is unreadable. */
export const MAX_DRAWN_CALLS = 1000;

const STATE_LABELS: Readonly<Record<NodeState, string>> = {
  idle: m.state_idle(),
  queued: m.state_queued(),
  running: m.state_running(),
  completed: m.state_completed(),
  failed: m.state_failed(),
  blocked: m.waiting_for_approval_inline(),
  cancelled: m.state_cancelled(),
};
const ENDED: readonly NodeState[] = ["completed", "failed", "cancelled"];

type ToolBlock = Extract<Block, { type: "tool" }>;

/** Build the graph of a run from the blocks of its answer. A block without a step belongs to the first step. */
export function buildGraph(run: { id: string; blocks: readonly { readonly block: Block }[]; running: boolean }): Graph {
  const calls = run.blocks.flatMap(({ block }) => (block.type === "tool" ? [block] : [])).slice(0, MAX_DRAWN_CALLS);
  const steps = new Map<number, ToolBlock[]>();
  for (const call of calls) {
    const step = call.step ?? 1;
    const known = steps.get(step);
    if (known) known.push(call);
    else steps.set(step, [call]);
  }
  const nodes: GraphNode[] = [{ id: `run:${run.id}`, kind: "run", label: m.run(), state: run.running ? "running" : "completed", stepIndex: 0 }];
  const edges: GraphEdge[] = [];
  const tools = new Set<string>();
  let before = `run:${run.id}`;
  for (const [index, [step, own]] of [...steps].entries()) {
    const id = `step:${step}`;
    nodes.push({ id, kind: "step", label: m.step_step({ step }), state: stateOf(own), stepIndex: index });
    edges.push({ from: before, to: id });
    before = id;
    for (const call of own) addCall(call, { stepIndex: index, from: id }, { nodes, edges, tools });
  }
  return { nodes, edges };
}

function addCall(call: ToolBlock, place: { stepIndex: number; from: string }, into: { nodes: GraphNode[]; edges: GraphEdge[]; tools: Set<string> }): void {
  const id = `call:${call.toolCallId}`;
  const tool = `tool:${call.tool}`;
  into.nodes.push({ id, kind: "call", label: call.tool, state: call.state, stepIndex: place.stepIndex });
  if (!into.tools.has(tool)) into.nodes.push({ id: tool, kind: "tool", label: call.tool, state: "idle", stepIndex: 0 });
  into.tools.add(tool);
  into.edges.push({ from: place.from, to: id }, { from: id, to: tool });
}

/** The state of a step: running or blocked as long as one of its calls is, failed if none completed. */
function stateOf(calls: readonly ToolBlock[]): NodeState {
  if (calls.some(({ state }) => state === "running" || state === "queued")) return "running";
  if (calls.some(({ state }) => state === "blocked")) return "blocked";
  return calls.find(({ state }) => state === "completed")?.state ?? calls.at(-1)?.state ?? "queued";
}

/** The patch that turns `before` into `after`. The graph of the same run only grows; the patch is whole for any other. */
export function diffGraph(before: Graph | null, after: Graph): GraphPatch {
  if (before === null || before.nodes[0]?.id !== after.nodes[0]?.id || before.nodes.length > after.nodes.length) return { whole: true, ...after };
  const known = new Map(before.nodes.map((node) => [node.id, node]));
  const nodes = after.nodes.filter((node) => !isSame(known.get(node.id), node));
  const edges = new Set(before.edges.map(keyOf));
  return { whole: false, nodes, edges: after.edges.filter((edge) => !edges.has(keyOf(edge))) };
}

export function isEmpty(patch: GraphPatch): boolean {
  return !patch.whole && patch.nodes.length === 0 && patch.edges.length === 0;
}

const keyOf = ({ from, to }: GraphEdge): string => `${from}\n${to}`;

function isSame(one: GraphNode | undefined, other: GraphNode): boolean {
  return one?.state === other.state && one.label === other.label && one.stepIndex === other.stepIndex;
}

/** The steps in words, for people who can't see the picture: "Step 2: 3 of 4 calls finished (glob, grep ×3), running". */
export function describeSteps(graph: Graph): string[] {
  const steps = graph.nodes.filter(({ kind }) => kind === "step");
  return steps.map(({ label, stepIndex, state }) => {
    const calls = graph.nodes.filter((node) => node.kind === "call" && node.stepIndex === stepIndex);
    const ended = calls.filter((call) => ENDED.includes(call.state)).length;
    return m.calls_finished({ step: label, ended, count: calls.length, names: names(calls), state: STATE_LABELS[state] });
  });
}

function names(calls: readonly GraphNode[]): string {
  const counts = new Map<string, number>();
  for (const { label } of calls) counts.set(label, (counts.get(label) ?? 0) + 1);
  return [...counts].map(([name, count]) => (count > 1 ? `${name} ×${count}` : name)).join(", ");
}
