// The composer, the first screen, the model picker and what stands around the conversation.

import { ApiError, NetworkError } from "@khala/client";
import type { Tool } from "@khala/client";

import AttachmentChips from "../../src/conversation/AttachmentChips.svelte";
import { Attachments } from "../../src/conversation/attachments.svelte.ts";
import Composer from "../../src/conversation/Composer.svelte";
import { composerState } from "../../src/conversation/composer-state.svelte.ts";
import { PENDING, Refusal } from "../responses.ts";
import { AGENTS } from "../fixtures/agents.ts";
import { LONG_QUESTION } from "../fixtures/markdown.ts";
import { MANY_MODELS } from "../fixtures/models.ts";
import { answer, blob, question, writing } from "../fixtures/messages.ts";
import { participant } from "../fixtures/people.ts";
import { component, type GalleryState, type Group, type Scenario } from "../state.ts";
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
const USED: Scenario = { messages: [ASKED, answer(2, "They expire.")] };
const BUSY: Scenario = { messages: [ASKED, writing(2, "They")] };
const FILES = [blob(1, "minutes.md", "text/markdown", 2_113), blob(2, "a file whose name is far too long to be shown in full on a phone.pdf", "application/pdf", 1_240_113)];
const SUN = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><rect width="8" height="8" fill="#38bdf8"/><circle cx="4" cy="4" r="2" fill="#fde047"/></svg>';
const UPLOADED = [new File([SUN], "sun.svg", { type: "image/svg+xml" }), new File(["a".repeat(2_113)], "minutes of the meeting.md", { type: "text/markdown" }), new File(["x"], "photo.heic", { type: "image/heic" }), new File(["x"], "film.mov"), new File(["x"], "report.pdf")];
/** One upload has ended, and another one failed; the others go on. */
const UPLOADS = new Attachments(({ name }, { progress }) => {
  if (name === "film.mov") return Promise.reject(new ApiError(413, { code: "payload_too_large", detail: "This file is too large." }));
  if (name === "report.pdf") return Promise.reject(new NetworkError("No network."));
  if (name !== "photo.heic") return Promise.resolve(blob(1, name, "text/plain", 1));
  progress?.(0.42);
  return new Promise(() => undefined);
}, nothing);
const TOOLS: Tool[] = ["fetch_url", "read_file", "write_file", "run_code"].map((name) => ({ name, description: name, parameters: {}, permissions: [], timeout: 20, cost: "free", idempotent: true, source: "built-in", action: "allow" }));

const states: readonly GalleryState[] = [
  { name: "the first screen", view, scenario: { responses: { "GET /api/tools": { items: TOOLS } } } },
  { name: "the first screen of the demo model", view, scenario: { responses: { "GET /api/tools": { items: TOOLS }, "GET /api/models": { default: "demo", items: [{ model: "demo", provider: "demo", name: "demo" }] } } } },
  { name: "a suggestion for the autopilot", view, scenario: { responses: { "GET /api/tools": { items: TOOLS } } }, act: (driver) => driver.press("#suggestions:not(.waiting) li:nth-child(2) button") },
  { name: "an agent", view, scenario: { ...USED, responses: { "GET /api/agents": { items: [...AGENTS] } } }, prepare: async ({ preferences, agents }) => (await agents.load(), void (preferences.agent = "researcher")) },
  { name: "empty", view, scenario: USED },
  { name: "a draft", view, scenario: { ...USED, draft: "What is a fencing token?" } },
  { name: "a long draft", view, scenario: { ...USED, draft: LONG_QUESTION } },
  { name: "a draft from right to left", view, scenario: { ...USED, draft: "ما هو رمز التسييج؟" } },
  { name: "too long", view, scenario: { ...USED, draft: "a ".repeat(50_010) } },
  { name: "with files", view, scenario: USED, prepare: () => composerState.fill("What do these say?", FILES) },
  { name: "a file is being uploaded", view, scenario: { ...USED, responses: { "POST /api/threads/*/blobs": PENDING } }, act: (driver) => driver.attach("#attach-field", ["photo.heic"]) },
  { name: "files in all states", view: component(AttachmentChips, { attachments: UPLOADS }), scenario: USED, prepare: () => UPLOADS.add(UPLOADED) },
  { name: "files are too large", view, scenario: { ...USED, responses: { "POST /api/threads/*/blobs": new Refusal(413, "payload_too_large", "This file is too large.") } }, act: (driver) => driver.attach("#attach-field", ["photo.heic", "film.mov"]) },
  { name: "an answer is being written", view, scenario: BUSY },
  { name: "a draft while an answer is being written", view, scenario: { ...BUSY, draft: "Shorter, please." } },
  { name: "offline", view, scenario: { ...USED, connection: "offline" } },
  { name: "loading", view, scenario: { connection: "loading" } },
  { name: "the menu of the composer", view, height: 420, opensUpwards: true, scenario: USED, prepare: ({ preferences }) => void (preferences.autopilot = true), act: (driver) => driver.press("#add") },
  { name: "autopilot", view, scenario: USED, prepare: ({ preferences }) => void (preferences.autopilot = true) },
  { name: "autopilot with an agent", view, scenario: { ...USED, responses: { "GET /api/agents": { items: [...AGENTS] } } }, prepare: async ({ preferences, agents }) => (await agents.load(), void Object.assign(preferences, { autopilot: true, agent: "researcher" })) },
  { name: "options of the autopilot", view, height: 300, opensUpwards: true, scenario: USED, prepare: ({ preferences }) => void Object.assign(preferences, { autopilot: true, budgetUsd: "0.5" }), act: (driver) => driver.press('[aria-controls="autopilot-options"]') },
  { name: "the models", view, height: 320, opensUpwards: true, scenario: USED, act: (driver) => driver.press("#model") },
  { name: "many models", view, height: 480, opensUpwards: true, scenario: { ...USED, responses: { "GET /api/models": MANY_MODELS } }, act: (driver) => driver.press("#model") },
  { name: "typing", view, scenario: { ...USED, thread: { visibility: "link" }, present: [participant(1, { name: "Grace Hopper", anonymous: false, state: { typing: true } }), participant(2, { state: { typing: true } })] } },
  { name: "dictation", view, scenario: USED, prepare: () => void Object.assign(globalThis, { SpeechRecognition: SilentRecognition }), act: (driver) => driver.press("#dictate") },
  {
    name: "the preview of a run", height: 620,
    view: component(Preview, { text: "Compare the three papers on leases, and write a table of their assumptions.", loaded: "researcher", maxSteps: 20, onanswer: () => undefined, outlook: { estimate: { basis: "history", runs: 12, steps: 6, seconds: 140, tokens: 24_000, costUsd: "0.21" }, agents: [{ id: "researcher", confidence: 0.82 }, { id: "reviewer", confidence: 0.1 }], suggested: "researcher", why: "It reads papers." } }),
    scenario: { responses: { "GET /api/agents": { items: [...AGENTS] } } }, prepare: ({ agents }) => agents.load(),
  },
];

export const composer: Group = { name: "composer", width: 640, states };
