// The composer, the first screen, the model picker and what stands around the conversation.

import type { Tool } from "@khala/client";

import Composer from "../../src/conversation/Composer.svelte";
import { composerState } from "../../src/conversation/composer-state.svelte.ts";
import { PENDING, Refusal } from "../answers.ts";
import { AGENTS } from "../fixtures/agents.ts";
import { LONG_QUESTION } from "../fixtures/markdown.ts";
import { answer, blob, question, writing } from "../fixtures/messages.ts";
import { participant } from "../fixtures/people.ts";
import { component, type GalleryState, type Group, type World } from "../state.ts";
import Preview from "../../src/autopilot/PreviewRun.svelte";

const nothing = (): void => undefined;

/** Listens, and hears nothing. */
class SilentRecognition {
  readonly start = nothing;
  readonly stop = nothing;
  readonly abort = nothing;
}

const view = component(Composer, {});
const ASKED = question(1, "How do leases work?");
const USED: World = { messages: [ASKED, answer(2, "They expire.")] };
const BUSY: World = { messages: [ASKED, writing(2, "They")] };
const FILES = [blob(1, "minutes.md", "text/markdown", 2_113), blob(2, "a file whose name is far too long to be shown in full on a phone.pdf", "application/pdf", 1_240_113)];
const TOOLS: Tool[] = ["web_search", "read_file", "write_file", "run_python"].map((name) => ({ name, description: name, parameters: {}, permissions: [], timeout: 20, cost: "free", idempotent: true, source: "built-in", action: "allow" }));

const states: readonly GalleryState[] = [
  { name: "the first screen", view, world: { answers: { "GET /api/tools": { items: TOOLS } } } },
  { name: "empty", view, world: USED },
  { name: "a draft", view, world: { ...USED, draft: "What is a fencing token?" } },
  { name: "a long draft", view, world: { ...USED, draft: LONG_QUESTION } },
  { name: "a draft from right to left", view, world: { ...USED, draft: "ما هو رمز التسييج؟" } },
  { name: "too long", view, world: { ...USED, draft: "a ".repeat(50_010) } },
  { name: "with files", view, world: USED, prepare: () => composerState.fill("What do these say?", FILES) },
  { name: "a file is being uploaded", view, world: { ...USED, answers: { "POST /api/threads/*/blobs": PENDING } }, act: (hand) => hand.attach("#attach-field", ["photo.heic"]) },
  { name: "files are too large", view, world: { ...USED, answers: { "POST /api/threads/*/blobs": new Refusal(413, "payload_too_large", "This file is too large.") } }, act: (hand) => hand.attach("#attach-field", ["photo.heic", "film.mov"]) },
  { name: "an answer is being written", view, world: BUSY },
  { name: "a draft while an answer is being written", view, world: { ...BUSY, draft: "Shorter, please." } },
  { name: "offline", view, world: { ...USED, connection: "offline" } },
  { name: "loading", view, world: { connection: "loading" } },
  { name: "autopilot", view, world: USED, prepare: ({ preferences }) => void (preferences.autopilot = true) },
  { name: "autopilot with an agent", view, world: { ...USED, answers: { "GET /api/agents": { items: [...AGENTS] } } }, prepare: async ({ preferences, agents }) => (await agents.load(), void Object.assign(preferences, { autopilot: true, agent: "researcher" })) },
  { name: "options of the autopilot", view, height: 300, opensUpwards: true, world: USED, prepare: ({ preferences }) => void Object.assign(preferences, { autopilot: true, budgetUsd: "0.5" }), act: (hand) => hand.press('[aria-controls="autopilot-options"]') },
  { name: "the models", view, height: 320, opensUpwards: true, world: USED, act: (hand) => hand.press("#model") },
  { name: "typing", view, world: { ...USED, thread: { visibility: "link" }, present: [participant(1, { name: "Grace Hopper", anonymous: false, state: { typing: true } }), participant(2, { state: { typing: true } })] } },
  { name: "dictation", view, world: USED, prepare: () => void Object.assign(globalThis, { SpeechRecognition: SilentRecognition }), act: (hand) => hand.press("#dictate") },
  {
    name: "the preview of a run", height: 620,
    view: component(Preview, { text: "Compare the three papers on leases, and write a table of their assumptions.", loaded: "researcher", maxSteps: 20, onanswer: () => undefined, outlook: { estimate: { basis: "history", runs: 12, steps: 6, seconds: 140, tokens: 24_000, costUsd: "0.21" }, agents: [{ id: "researcher", confidence: 0.82 }, { id: "reviewer", confidence: 0.1 }], suggested: "researcher", why: "It reads papers." } }),
    world: { answers: { "GET /api/agents": { items: [...AGENTS] } } }, prepare: ({ agents }) => agents.load(),
  },
];

export const composer: Group = { name: "composer", width: 640, states };
