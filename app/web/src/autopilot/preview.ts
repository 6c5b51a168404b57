// The preview before a run on autopilot: asked of the agent's worker, shown, and answered by the person.

import { mount, unmount } from "svelte";

import { estimate, route } from "../agent/client.ts";
import type { RunOptions } from "../khala/frames.ts";
import { page } from "../state/page.svelte.ts";
import { agents } from "../agent/templates.ts";
import type { Answer, Outlook } from "./outlook.ts";
import PreviewRun from "./PreviewRun.svelte";

/** A person who wants to send waits no longer than this for an outlook, in ms. */
const PATIENCE_MS = 800;

/**
 * The options that this text is to be sent with, or null if it is not to be sent. Nothing is asked where the person wants
 * no preview, the autopilot is off, or the worker doesn't answer in time.
 */
export async function preview(text: string): Promise<RunOptions | null> {
  const options = page.options();
  if (!page.preferences.preview || !options.autopilot) return options;
  const outlook = await inTime(look(text, options.model));
  if (!outlook) return options;
  const answer = await asked(text, outlook);
  if (answer.kind === "cancel") return null;
  if (answer.kind === "send") return withoutAutopilot(page.options());
  page.preferences.agent = answer.agent;
  return loaded(answer.agent);
}

/** The page's options, once it has loaded the agent that was chosen just now. */
async function loaded(agent: string | null): Promise<RunOptions> {
  const until = Date.now() + PATIENCE_MS;
  while (agent !== null && !page.options().instructions && Date.now() < until) await new Promise((resolve) => setTimeout(resolve, 10));
  return page.options();
}

async function look(text: string, model: string | undefined): Promise<Outlook> {
  const [ranked, found] = await Promise.all([route(text, agents), estimate(text, model)]);
  return { agents: ranked, estimate: found };
}

/** What comes in time, or null; what went wrong is no reason to keep a message back. */
async function inTime(outlook: Promise<Outlook>): Promise<Outlook | null> {
  const late = new Promise<null>((resolve) => setTimeout(() => resolve(null), PATIENCE_MS));
  const failed = outlook.catch((error: unknown) => {
    console.warn("The preview of this run is not available.", error);
    return null;
  });
  return Promise.race([failed, late]);
}

function asked(text: string, outlook: Outlook): Promise<Answer> {
  return new Promise((resolve) => {
    const { agent, maxSteps } = page.preferences;
    const onanswer = (answer: Answer): void => {
      resolve(answer);
      void unmount(shown);
    };
    const shown = mount(PreviewRun, { target: document.body, props: { text, outlook, loaded: agent, maxSteps, onanswer } });
  });
}

/** One round at most, as whoever it was without an agent. */
function withoutAutopilot({ model, budget, ifBusy }: RunOptions): RunOptions {
  return { ...(model && { model }), ...(budget && { budget }), ...(ifBusy && { ifBusy }) };
}
