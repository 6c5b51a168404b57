// Whole pages: what stands around the conversation, and how it all fits together.

import type { MessageState } from "@khala/client";

import App from "../../src/App.svelte";
import { listVisibility } from "../../src/chats/list-visibility.svelte.ts";
import { sidePanel } from "../../src/panel/side-panel.svelte.ts";
import { panelState } from "../../src/plans/panel-state.svelte.ts";
import { PENDING } from "../responses.ts";
import { CHAT_ID, idOf, minutesAgo } from "../fixtures/ids.ts";
import { answer, call, question, writing } from "../fixtures/messages.ts";
import { ADA, participant } from "../fixtures/people.ts";
import { plan, planResponses } from "../fixtures/plans.ts";
import { THREADS } from "../fixtures/threads.ts";
import { whole, type GalleryState, type Group, type Scenario } from "../state.ts";

const view = whole(App);
const height = 620;
const MESSAGES = [question(1, "How do leases keep two workers from doing the same job?", { authorId: ADA.id }), answer(2, "A lease is a lock that **expires**. Each worker has to renew it while it works, so a worker that dies gives up its job by itself.")];
/** As the server writes it, unless its operator has another one. */
const WELCOME: MessageState = { ...question(1, "Hi! Ask me anything. Your conversation is saved, even if you close this page."), role: "assistant" };
const CHAT: Scenario = { user: ADA, threads: THREADS, thread: { title: "Leases and fencing tokens" }, messages: MESSAGES };

const states: readonly GalleryState[] = [
  { name: "a new chat", view, height, scenario: { messages: [WELCOME] } },
  { name: "a new chat without a welcome", view, height, scenario: { user: ADA, threads: THREADS.slice(0, 2) } },
  { name: "a new temporary chat", view, height, scenario: { isTemporary: true, messages: [WELCOME] } },
  { name: "a temporary chat", view, height, scenario: { ...CHAT, isTemporary: true } },
  { name: "a chat", view, height, scenario: CHAT },
  { name: "the list is hidden", view, height, scenario: CHAT, prepare: () => void (listVisibility.isHidden = true) },
  { name: "an answer with others present", view, height, scenario: { ...CHAT, thread: { title: "A title that is far too long for the header of the page, at least on a small phone" }, messages: [...MESSAGES, question(3, "And a fencing token?", { authorId: ADA.id }), writing(4, "A number that grows")], present: [participant(1, { name: "Grace Hopper", userId: idOf(102), anonymous: false, state: { typing: true } }), participant(2), participant(3, { name: "Alan" })] } },
  { name: "offline", view, height, scenario: { ...CHAT, connection: "offline" } },
  { name: "the connection is lost", view, height, scenario: { ...CHAT, connection: "waiting" } },
  { name: "the chat is not there", view, height, scenario: { user: ADA, refusal: { code: "thread_not_found", message: "There is no such chat." } } },
  { name: "no access", view, height, scenario: { role: "viewer", refusal: { code: "forbidden", message: "You may not read this chat." } } },
  { name: "only to read", view, height, scenario: { ...CHAT, role: "viewer", thread: { title: "Minutes", visibility: "link", ownerId: idOf(102) }, threads: THREADS.slice(3) } },
  { name: "an invitation", view, height, scenario: { ...CHAT, role: "viewer", threads: THREADS.slice(3), thread: { title: "Minutes", ownerId: idOf(102) }, invitations: [{ threadId: CHAT_ID, title: "Minutes", role: "editor", invitedBy: "Grace Hopper", createdAt: minutesAgo(1) }] } },
  { name: "chats to claim", view, height, scenario: CHAT, prepare: (page) => void Object.assign(page, { claimableCount: 3 }) },
  { name: "a guest in a shared chat", view, height, scenario: { role: "editor", thread: { title: "Minutes", visibility: "link" }, messages: MESSAGES } },
  { name: "a plan and a run", view, height, scenario: { ...CHAT, plans: [plan()], messages: [...MESSAGES, question(3, "Try it.", { authorId: ADA.id }), writing(4, [call(1, "run_command", { state: "running", args: { command: "make test" } })], { currentStep: { step: 1, maxSteps: 20, toolCount: 1 } })], responses: planResponses(plan()) } },
  { name: "the side panel", view, height, scenario: { ...CHAT, messages: [...MESSAGES, answer(3, [call(1, "write_file", { args: { path: "settings.csv", content: "name,seconds\nlease,30\ngrace,5\n" } })])] }, prepare: () => sidePanel.open(CHAT_ID, "file settings.csv") },
  { name: "the panel of a plan", view, height, scenario: { ...CHAT, plans: [plan()], responses: planResponses(plan()) }, prepare: () => panelState.open() },
  { name: "a dialog", view, height, scenario: { ...CHAT, responses: { "GET /api/threads/*/links": PENDING, "GET /api/threads/*/members": PENDING } }, prepare: (page) => void (page.dialog = "share") },
];

export const pages: Group = { name: "pages", width: 960, states };
