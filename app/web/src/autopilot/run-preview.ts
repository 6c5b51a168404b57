// The preview before a run on autopilot: requests a forecast from the server and the agent worker, shows it, and waits for the
// person's answer.

import { mount, unmount } from "svelte";

import { estimate, route, type RankedAgent, type RoutableAgent } from "../agent/client.ts";
import type { Agent, RoutePreview, RunOptions } from "@khala/client";
import { page } from "../state/page.svelte.ts";
import type { ChatView } from "../state/page-model.ts";
import type { PreviewAnswer, RunForecast } from "./run-forecast.ts";
import PreviewRun from "./PreviewRun.svelte";
import { askServer, combine } from "./server-forecast.ts";

/** A message waits no longer than this for its forecast. */
const FORECAST_TIMEOUT_MS = 800;
/** A server that is slower, or is not reached, leaves the forecast to this browser. */
const SERVER_TIMEOUT_MS = 500;
/** The browser's router suggests an agent from this confidence on. */
const MIN_CONFIDENCE = 0.5;

type PreviewedChat = Pick<ChatView, "id" | "keys" | "thread">;

/**
 * The options to send this text with, or null if the person cancels. There is no preview if it is switched off, autopilot is
 * off, or the worker does not answer in time.
 */
export async function previewRun(text: string, chat: PreviewedChat): Promise<RunOptions | null> {
  const options = page.options();
  if (!page.preferences.preview || !options.autopilot) return options;
  const outlook = await withTimeout(forecast(text, chat, options.model));
  if (!outlook) return options;
  const answer = await askPerson(text, outlook);
  if (answer.kind === "cancel") return null;
  if (answer.kind === "send") return withoutAutopilot(page.options());
  page.preferences.agent = answer.agent;
  return page.options();
}

async function forecast(text: string, chat: PreviewedChat, model: string | undefined): Promise<RunForecast> {
  const [preview, agents, found] = await Promise.all([askAs(chat, text), rankAgents(text), estimate(text, model)]);
  const suggested = agents.find(({ confidence }) => confidence >= MIN_CONFIDENCE)?.id ?? null;
  return combine({ agents, suggested, estimate: found }, preview);
}

/** The preview for the account, or for a guest in this chat: before its first message the server does not know it. */
async function askAs({ id, keys, thread }: PreviewedChat, text: string): Promise<RoutePreview | null> {
  if (page.account.user !== null) return askServer({ text }, {}, SERVER_TIMEOUT_MS);
  return thread === null ? null : askServer({ text, threadId: id }, keys, SERVER_TIMEOUT_MS);
}

async function rankAgents(text: string): Promise<readonly RankedAgent[]> {
  return route(text, (await page.agents.lastKnown()).map(routable));
}

function routable({ name, title, description, instructions, tools, examples }: Agent): RoutableAgent {
  return { id: name, name: title, description, instructions, tools, prompts: examples };
}

/** The forecast, or null if it fails or does not arrive in time. */
async function withTimeout(outlook: Promise<RunForecast>): Promise<RunForecast | null> {
  const late = new Promise<null>((resolve) => setTimeout(() => resolve(null), FORECAST_TIMEOUT_MS));
  const failed = outlook.catch((error: unknown) => {
    console.warn("The preview of this run is not available.", error);
    return null;
  });
  return Promise.race([failed, late]);
}

function askPerson(text: string, outlook: RunForecast): Promise<PreviewAnswer> {
  return new Promise((resolve) => {
    const { agent, maxSteps } = page.preferences;
    const onanswer = (answer: PreviewAnswer): void => {
      resolve(answer);
      void unmount(shown);
    };
    const shown = mount(PreviewRun, { target: document.body, props: { text, outlook, loaded: agent, maxSteps, onanswer } });
  });
}

/** Options for a single step without an agent. */
function withoutAutopilot({ model, budget, ifBusy }: RunOptions): RunOptions {
  return { ...(model && { model }), ...(budget && { budget }), ...(ifBusy && { ifBusy }) };
}
