import { afterEach, beforeEach, expect, test, vi } from "vitest";

import type { RunOptions, Thread } from "@khala/client";
import type { PreviewAnswer, RunForecast } from "./run-forecast.ts";

const OUTLOOK: RunForecast = { agents: [{ id: "reviewer", confidence: 0.9 }], suggested: "reviewer", estimate: { steps: 2, seconds: 10, tokens: 900, basis: "rough", runs: 0 } };

const REVIEWER = { name: "reviewer", title: "Code reviewer", description: "Reads code.", instructions: "Be kind.", tools: ["grep"], examples: ["Review it"] };

/** A chat without a message. */
const CHAT = { id: "thread", keys: { anonKey: "key" }, thread: null };

const world = vi.hoisted(() => ({
  preferences: { autopilot: true, preview: true, agent: null as string | null, maxSteps: 20 },
  user: null as { id: string } | null,
  route: vi.fn(),
  askServer: vi.fn(),
  shown: [] as { onanswer: (answer: PreviewAnswer) => void; outlook: RunForecast }[],
  unmounted: 0,
}));

vi.mock("svelte", () => ({
  mount: (_: unknown, { props }: { props: (typeof world.shown)[number] }) => world.shown.push(props),
  unmount: () => Promise.resolve(world.unmounted++),
}));
vi.mock("./PreviewRun.svelte", () => ({ default: {} }));
vi.mock("./server-forecast.ts", async (original) => ({ ...(await original<object>()), askServer: world.askServer }));
vi.mock("../agent/client.ts", () => ({ route: world.route, estimate: () => Promise.resolve(OUTLOOK.estimate) }));
vi.mock("../state/page.svelte.ts", () => {
  const options = (): RunOptions => ({
    ...(world.preferences.autopilot && { autopilot: true, maxSteps: world.preferences.maxSteps }),
    ...(world.preferences.agent && { agent: world.preferences.agent }),
    budget: { tokens: 5 },
  });
  const account = { get user() { return world.user; } };
  return { page: { preferences: world.preferences, account, agents: { lastKnown: () => Promise.resolve([REVIEWER]) }, options } };
});

const { previewRun } = await import("./run-preview.ts");

beforeEach(() => {
  vi.stubGlobal("document", { body: {} });
  Object.assign(world.preferences, { autopilot: true, preview: true, agent: null });
  Object.assign(world, { shown: [], unmounted: 0, user: null });
  world.askServer.mockReset().mockResolvedValue(null);
  world.route.mockReset().mockResolvedValue(OUTLOOK.agents);
});
afterEach(() => vi.unstubAllGlobals());

async function answered(answer: PreviewAnswer, chat: Parameters<typeof previewRun>[1] = CHAT): Promise<RunOptions | null> {
  const options = previewRun("Review it", chat);
  await vi.waitUntil(() => world.shown.length === 1);
  world.shown[0]?.onanswer(answer);
  return options;
}

test("what is started is sent on autopilot as the agent that was chosen", async () => {
  expect(await answered({ kind: "start", agent: "reviewer" })).toMatchObject({ autopilot: true, agent: "reviewer" });
  expect(world.preferences.agent).toBe("reviewer");
  expect(world.shown[0]?.outlook).toEqual(OUTLOOK);
  expect(world.unmounted).toBe(1);
});

test("the browser ranks the agents that are known", async () => {
  await answered({ kind: "cancel" });
  const { name: id, title: name, description, instructions, tools, examples: prompts } = REVIEWER;
  expect(world.route).toHaveBeenCalledWith("Review it", [{ id, name, description, instructions, tools, prompts }]);
});

test("an agent that is hardly likely is not suggested", async () => {
  world.route.mockResolvedValue([{ id: "reviewer", confidence: 0.49 }]);
  await answered({ kind: "cancel" });
  expect(world.shown[0]?.outlook.suggested).toBeNull();
});

test("the server is asked for the account, or for a guest in a chat that it knows", async () => {
  await answered({ kind: "cancel" });
  expect(world.askServer).not.toHaveBeenCalled();
  world.shown = [];
  await answered({ kind: "cancel" }, { ...CHAT, thread: {} as Thread });
  expect(world.askServer).toHaveBeenLastCalledWith({ text: "Review it", threadId: "thread" }, CHAT.keys, 500);
  Object.assign(world, { shown: [], user: { id: "ada" } });
  await answered({ kind: "cancel" });
  expect(world.askServer).toHaveBeenLastCalledWith({ text: "Review it" }, {}, 500);
});

test("what is just sent has one round, within the same budget, and changes no choice", async () => {
  world.preferences.agent = "tester";
  expect(await answered({ kind: "send" })).toEqual({ budget: { tokens: 5 } });
  expect(world.preferences).toMatchObject({ autopilot: true, agent: "tester" });
});

test("what is called off is not sent", async () => {
  expect(await answered({ kind: "cancel" })).toBeNull();
});

test("nothing is asked without autopilot, or of whoever wants no preview", async () => {
  world.preferences.preview = false;
  expect(await previewRun("Review it", CHAT)).toMatchObject({ autopilot: true });
  Object.assign(world.preferences, { preview: true, autopilot: false });
  expect(await previewRun("Review it", CHAT)).not.toHaveProperty("autopilot");
  expect(world.shown).toEqual([]);
  expect(world.route).not.toHaveBeenCalled();
});

test("a worker that is late or fails keeps no message back", async () => {
  vi.useFakeTimers();
  world.route.mockReturnValue(new Promise(() => undefined));
  const late = previewRun("Review it", CHAT);
  await vi.advanceTimersByTimeAsync(800);
  expect(await late).toMatchObject({ autopilot: true });
  vi.useRealTimers();
  const warn = vi.spyOn(console, "warn").mockReturnValue(undefined);
  world.route.mockRejectedValue(new Error("no worker"));
  expect(await previewRun("Review it", CHAT)).toMatchObject({ autopilot: true });
  expect(warn).toHaveBeenCalledOnce();
  expect(world.shown).toEqual([]);
});
