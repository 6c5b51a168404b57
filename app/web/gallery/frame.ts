// Shows one state: the real page, whose server and browser are those of the state's scenario.

import "../src/style/fonts.ts";
import "./fonts.css";
import "./frame.css";

import { freeze, replace } from "./frozen.ts";
import { respondToRequests } from "./responses.ts";
import { PageDriver, nextFrame } from "./page-driver.ts";
import { groupOf } from "./groups.ts";
import { factsOf, type Variant } from "./variants.ts";
import { storeScenario, streamOf } from "./scenario.ts";

const QUIET_FRAMES = 4;
const MAX_FRAMES = 600;

export type Shown = { group: string; variant: Variant; number: number };
/** What a frame tells its sheet: the height of its content, or what is wrong. */
export type Report = { type: "shown"; number: number; height: number } | { type: "failed"; number: number; problem: string };

/** Show a state, and tell the sheet when it is at rest. */
export async function showState(shown: Shown): Promise<void> {
  const problems: string[] = [];
  const { number } = shown;
  addEventListener("error", ({ message }) => problems.push(message));
  addEventListener("unhandledrejection", ({ reason }) => problems.push(String(reason)));
  try {
    await show(shown, problems);
    await untilQuiet();
  } catch (error) {
    problems.push(String(error));
  }
  const report: Report = problems.length > 0 ? { type: "failed", number, problem: problems.join("; ") } : { type: "shown", number, height: Math.ceil(document.body.getBoundingClientRect().height) };
  parent.postMessage(report, location.origin);
}

async function show({ group, variant, number }: Shown, problems: string[]): Promise<void> {
  document.documentElement.className = "frame";
  freeze(`${group} ${number}`);
  const { languages, isDark } = factsOf(variant);
  replace(navigator, "languages", languages);
  localStorage.setItem("khala.theme", isDark ? "dark" : "light");
  const { applyAppearance } = await import("../src/state/appearance.ts");
  const { loadMessages } = await import("../src/i18n/load-messages.ts");
  applyAppearance();
  await loadMessages();
  const { states } = await groupOf(group);
  const state = states[number];
  if (state === undefined) throw new Error(`There is no state ${number}.`);
  const { scenario = {} } = state;
  if (scenario.connection === "offline") replace(navigator, "onLine", false);
  const unknown = respondToRequests({ "GET /api/threads/*/access": { role: scenario.role ?? "owner" }, ...scenario.responses });
  storeScenario(scenario);
  await import("../src/style/base.css");
  const { page, start } = await import("../src/state/page.svelte.ts");
  await start(streamOf(scenario));
  for (let frame = 0; frame < 3; frame++) await nextFrame();
  await state.prepare?.(page);
  document.body.classList.toggle("part", !state.view.isWhole);
  document.body.classList.toggle("high", state.height !== undefined);
  document.body.classList.toggle("end", state.opensUpwards === true);
  document.title = state.name;
  state.view.show(state.view.isWhole ? document.body : document.body.appendChild(document.createElement("main")));
  await nextFrame();
  await state.act?.(new PageDriver());
  await untilQuiet();
  problems.push(...unknown.map((name) => `no response for ${name}`));
}

/** Wait until the document has not changed for a few frames, and its fonts and images are there. Throws if that does not come. */
async function untilQuiet(): Promise<void> {
  let quiet = 0;
  const watcher = new MutationObserver(() => (quiet = 0));
  watcher.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  for (let frame = 0; frame < MAX_FRAMES && quiet < QUIET_FRAMES; frame++) {
    await nextFrame();
    quiet = document.fonts.status === "loaded" && [...document.images].every(({ complete }) => complete) ? quiet + 1 : 0;
  }
  watcher.disconnect();
  if (quiet < QUIET_FRAMES) throw new Error("The state does not come to rest.");
}
