// Dialogs: sign-in, sharing, search, the palette, questions and toasts.

import type { SearchHit } from "@khala/client";

import { chatMenu } from "../../src/chats/chat-menu-state.svelte.ts";
import type { FolderFile } from "../../src/chats/folder-files.svelte.ts";
import { searchState } from "../../src/chats/search-state.svelte.ts";
import Toasts from "../../src/dialogs/Toasts.svelte";
import type { PageModel } from "../../src/state/page-model.ts";
import { PENDING, Refusal, type Responses } from "../responses.ts";
import { AGENTS } from "../fixtures/agents.ts";
import { idOf, inMinutes, minutesAgo } from "../fixtures/ids.ts";
import { answer, question } from "../fixtures/messages.ts";
import { ADA } from "../fixtures/people.ts";
import { SCHEDULES, WAITING } from "../fixtures/schedules.ts";
import { THREADS } from "../fixtures/threads.ts";
import { component, type GalleryState, type Group, type Scenario } from "../state.ts";
import Dialogs from "../views/Dialogs.svelte";
import Help from "../views/Help.svelte";
import ImportChats from "../views/ImportChats.svelte";
import Waiting from "../views/Waiting.svelte";

const view = component(Dialogs, {});
const height = 560;
const open = (dialog: PageModel["dialog"]) => (page: PageModel) => void (page.dialog = dialog);
const CHAT: Scenario = { user: ADA, threads: THREADS, messages: [question(1, "How do leases work?", { authorId: ADA.id }), answer(2, "They expire.")] };
const LINKS: Responses = {
  "GET /api/threads/*/links": { items: [{ id: idOf(1), role: "viewer", createdAt: minutesAgo(60) }, { id: idOf(2), role: "editor", createdAt: minutesAgo(9), expiresAt: inMinutes(10_000) }] },
  "GET /api/threads/*/members": {
    items: [
      { userId: ADA.id, name: "Ada Lovelace", role: "owner", status: "member" },
      { userId: idOf(102), name: "Grace Brewster Murray Hopper of the United States Navy", role: "editor", status: "member" },
      { userId: idOf(103), role: "viewer", status: "invited" },
    ],
  },
};
const HITS: SearchHit[] = [
  hit(1, "A lease is a lock that expires. Each worker has to renew its lease while it works.", "exact", [[2, 7]]),
  hit(2, "عقد الإيجار lease قفل ينتهي بعد مدة.", "exact", [[12, 17]]),
  { ...hit(3, "lease_seconds,30", "exact", [[0, 5]]), blobId: idOf(3001), name: "settings.csv" },
  hit(4, "Leasing a car is cheaper.", "similar", [[0, 7]]),
];

function hit(number: number, text: string, match: SearchHit["match"], ranges: [number, number][]): SearchHit {
  return { threadId: idOf(5000 + number), messageId: idOf(6000 + number), text, match, by: "words", score: 0.8, createdAt: minutesAgo(number), highlights: ranges.map(([start, end]) => ({ start, end })) };
}

const FOLDER: Responses = {
  "GET /api/agents": { items: [...AGENTS] },
  "GET /api/me/folders": { items: [{ name: "Later", threads: 0 }, { name: "Travel", threads: 3, agent: nonNull(AGENTS[0]).name, hasInstructions: true }] },
  "GET /api/me/folder": { name: "Travel", threads: 3, agent: nonNull(AGENTS[0]).name, instructions: "We go by train, with two children. Prices in euros." },
  "GET /api/me/folder/files": { items: [file(1, "budget.csv", 18_400, "text/csv"), file(2, "packing-list.md", 2_300, "text/markdown"), file(3, "timetable.pdf", 1_240_000, "application/pdf")] },
};

function file(number: number, name: string, size: number, mediaType: string): FolderFile {
  return { id: idOf(7000 + number), name, size, mediaType, createdAt: minutesAgo(number) };
}

const states: readonly GalleryState[] = [
  { name: "sign in", view, height, prepare: open("signin") },
  { name: "create an account", view, height, scenario: { thread: { title: "Leases" } }, prepare: open("signin"), act: (driver) => driver.press("#signin-switch") },
  { name: "sign-in for an app, which failed", view, height: 640, prepare: (page) => void Object.assign(page, { signInReturn: "/oauth/authorize?x", signInProblem: "oidc_failed", dialog: "signin" }) },
  { name: "sharing", view, height: 900, scenario: { ...CHAT, thread: { visibility: "link" }, responses: LINKS }, prepare: open("share") },
  { name: "sharing with nobody yet", view, height: 760, scenario: { ...CHAT, responses: { "GET /api/threads/*/links": { items: [] }, "GET /api/threads/*/members": { items: [] } } }, prepare: open("share") },
  { name: "sharing is loading", view, height: 760, scenario: { ...CHAT, thread: { visibility: "link" }, responses: { "GET /api/threads/*/links": PENDING, "GET /api/threads/*/members": PENDING } }, prepare: open("share") },
  { name: "sharing cannot be loaded", view, height: 760, scenario: { ...CHAT, thread: { visibility: "link" }, responses: { "GET /api/threads/*/links": new Refusal(403, "forbidden", "No."), "GET /api/threads/*/members": new Refusal(403, "forbidden", "No.") } }, prepare: open("share") },
  { name: "search", view, height, scenario: { ...CHAT, responses: { "GET /api/search": { items: HITS } } }, prepare: open("search"), act: (driver) => driver.type("#search-words", "lease") },
  { name: "search without words", view, height: 320, scenario: CHAT, prepare: open("search") },
  { name: "search finds nothing", view, height: 320, scenario: { ...CHAT, responses: { "GET /api/search": { items: [] } } }, prepare: (page) => ((searchState.inChat = true), open("search")(page)), act: (driver) => driver.type("#search-words", "zzz") },
  { name: "search is under way", view, height: 320, scenario: { ...CHAT, responses: { "GET /api/search": PENDING } }, prepare: open("search"), act: (driver) => driver.type("#search-words", "lease") },
  { name: "the palette", view, height: 640, scenario: { ...CHAT, responses: { "GET /api/agents": { items: [...AGENTS] } } }, prepare: async (page) => (await page.agents.load(), open("palette")(page)) },
  { name: "the palette finds", view, height: 640, scenario: { ...CHAT, responses: { "GET /api/search": { items: HITS } } }, prepare: open("palette"), act: (driver) => driver.type("#palette input", "lease") },
  { name: "the palette finds nothing", view, height: 420, scenario: { ...CHAT, responses: { "GET /api/search": { items: [] } } }, prepare: open("palette"), act: (driver) => driver.type("#palette input", "zzz") },
  { name: "renaming", view, height: 320, scenario: CHAT, prepare: ({ chats }) => chatMenu.ask("rename", nonNull(chats.items[0])) },
  { name: "choosing a folder", view, height: 420, scenario: CHAT, prepare: ({ chats }) => chatMenu.ask("folder", nonNull(chats.items[0])) },
  { name: "scheduled messages", view, height: 900, scenario: { ...CHAT, responses: { "GET /api/schedules": { items: [...SCHEDULES] } } }, prepare: open("schedules") },
  { name: "the menu of a schedule", view, height: 700, scenario: { ...CHAT, responses: { "GET /api/schedules": { items: [...SCHEDULES] } } }, prepare: open("schedules"), act: (driver) => driver.press("[data-schedule] .icon") },
  { name: "no scheduled messages", view, height: 320, scenario: CHAT, prepare: open("schedules") },
  { name: "scheduled messages of a guest", view, height: 320, prepare: open("schedules") },
  { name: "a new schedule", view, height: 860, scenario: { ...CHAT, responses: { "GET /api/schedules/preview": { times: ["2031-03-15T08:00:00Z", "2031-03-16T08:00:00Z", "2031-03-17T08:00:00Z"] } } }, prepare: open("schedules"), act: (driver) => driver.press("#schedule-new") },
  { name: "a time to send later", view, height: 360, scenario: CHAT, prepare: open("send-later") },
  { name: "messages that wait", view: component(Waiting, {}), scenario: { ...CHAT, responses: { "GET /api/schedules": { items: [...WAITING] } } } },
  { name: "importing chats", view: component(ImportChats, {}) },
  { name: "a folder", view, height: 1040, scenario: { ...CHAT, responses: FOLDER }, prepare: openFolder() },
  { name: "a folder without chats and settings", view, height: 860, scenario: { ...CHAT, responses: { ...FOLDER, "GET /api/me/folder": { name: "Later", threads: 0 }, "GET /api/me/folder/files": { items: [] } } }, prepare: openFolder("Later") },
  { name: "files of a folder are refused", view, height: 1180, scenario: { ...CHAT, responses: { ...FOLDER, "POST /api/me/folder/files": new Refusal(415, "unsupported_media_type", "No.") } }, prepare: openFolder(), act: (driver) => driver.attach("#folder-file", ["film.mov", "budget.numbers"]) },
  { name: "a folder cannot be loaded", view, height: 640, scenario: { ...CHAT, responses: { ...FOLDER, "GET /api/me/folder": new Refusal(403, "forbidden", "No.") } }, prepare: openFolder() },
  { name: "a folder of a guest", view, height: 420, scenario: { known: [{ id: idOf(5101), title: "Hotels", created: true, key: "key", folder: "Travel" }] }, prepare: openFolder() },
  { name: "a new folder", view, height: 320, scenario: CHAT, prepare: () => chatMenu.askNewFolder() },
  { name: "a new folder of a guest", view, height: 320, prepare: () => chatMenu.askNewFolder() },
  { name: "renaming a folder", view, height: 320, scenario: CHAT, prepare: openFolder("Travel", true) },
  { name: "shortcuts", view: component(Help, {}), height: 640 },
  { name: "a question to confirm", view, height: 320, prepare: (page) => void page.confirm({ title: "Delete this memory?", text: "“Prefers short answers” is deleted, with its earlier versions. This can’t be undone.", yes: "Delete" }) },
  { name: "toasts", view: component(Toasts, {}), height: 320, prepare: (page) => (page.toast("Link copied."), page.toast("The chat was deleted.", { label: "Undo", act: () => undefined }), page.toast("The file with the very long name could not be downloaded because the server is out of reach.")) },
];

function openFolder(name = "Travel", renames = false): (page: PageModel) => Promise<void> {
  return async (page) => {
    await page.chats.loadFolders();
    chatMenu.askFolder(name, renames);
  };
}

function nonNull<T>(value: T | undefined): T {
  if (value === undefined) throw new Error("The list of chats is empty.");
  return value;
}

export const dialogs: Group = { name: "dialogs", width: 640, states };
