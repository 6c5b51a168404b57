// The preview before a run on autopilot: requests a forecast from the agent worker, shows it, and waits for the person's answer.

import { mount, unmount } from "svelte";

import { estimate, route } from "../agent/client.ts";
import type { RunOptions } from "../khala/frames.ts";
import { page } from "../state/page.svelte.ts";
import type { ChatView } from "../state/page-model.ts";
import { agentTemplates } from "../agent/templates.ts";
import type { PreviewAnswer, RunForecast } from "./run-forecast.ts";
import PreviewRun from "./PreviewRun.svelte";
import { askServer, combine, type Call } from "./server-forecast.ts";

/** A message waits no longer than this for its forecast. */
const FORECAST_TIMEOUT_MS = 800;
/** A server that is slower, or is not reached, leaves the forecast to this browser. */
const SERVER_TIMEOUT_MS = 500;

/**
 * The options to send this text with, or null if the person cancels. There is no preview if it is switched off, autopilot is
 * off, or the worker does not answer in time.
 */
export async function previewRun(text: string, chat: Pick<ChatView, "id" | "call">): Promise<RunOptions | null> {
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

async function forecast(text: string, chat: Pick<ChatView, "id" | "call">, model: string | undefined): Promise<RunForecast> {
  const call = chat.call.bind(chat) as Call;
  const asked = askServer(call, text, chat.id, SERVER_TIMEOUT_MS);
  const [agents, found] = await Promise.all([route(text, agentTemplates), estimate(text, model)]);
  return combine({ agents, estimate: found }, await asked);
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
