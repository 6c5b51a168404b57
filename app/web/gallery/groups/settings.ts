// Settings, those of a chat, memories, agents, and what was sent to a model.

import type { AccountConnection, Memory } from "@khala/client";

import type { PageModel } from "../../src/state/page-model.ts";
import type { SettingsSection } from "../../src/state/settings-section.ts";
import { openSettings } from "../../src/state/settings-view.svelte.ts";
import { PENDING, Refusal, type Responses } from "../responses.ts";
import { AGENTS } from "../fixtures/agents.ts";
import { CHAT_ID, idOf, inMinutes, minutesAgo, TIME } from "../fixtures/ids.ts";
import { answer, question } from "../fixtures/messages.ts";
import { ADA } from "../fixtures/people.ts";
import { component, type GalleryState, type Group, type Scenario } from "../state.ts";
import Context from "../views/Context.svelte";
import Dialogs from "../views/Dialogs.svelte";
import UsedMemories from "../views/UsedMemories.svelte";

const view = component(Dialogs, {});
const open = (dialog: PageModel["dialog"]) => (page: PageModel) => void (page.dialog = dialog);
const settingsAt = (section: SettingsSection) => (page: PageModel) => openSettings(page, section);
/** Open a section in a dialog that has room for all of it. */
const wholeSection = (section: SettingsSection) => (page: PageModel) => (document.documentElement.style.setProperty("--settings-height", "200rem"), openSettings(page, section));
const CHAT: Scenario = { user: ADA, messages: [question(1, "How do leases work?", { authorId: ADA.id }), answer(2, "They expire.")] };
const DAY = 24 * 60;

const ACCOUNT: Responses = {
  "GET /api/me": { ...ADA, identities: [{ issuer: "https://id.example.com", email: "ada@example.com" }] },
  "GET /api/me/sessions": { items: [session(1, "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/140.0 Safari/537.36", true), session(2, "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) Version/19.0 Mobile Safari/604.1", false)] },
  "GET /api/tokens": { items: [{ id: idOf(1), name: "A script with a very long name that somebody wrote last year", scopes: ["read", "write"], createdAt: TIME, usedAt: minutesAgo(60), expiresAt: inMinutes(90 * DAY) }, { id: idOf(2), name: "CI", scopes: ["read"], createdAt: TIME }] },
  "GET /api/grants": { items: [{ id: idOf(1), clientId: "c", clientName: "Editor", redirectHost: "editor.example.com", resource: "r", scopes: ["khala:read"], createdAt: TIME, expiresAt: inMinutes(DAY) }] },
  "GET /api/me/usage": { items: [{ scope: "user", measure: "usd", used: "3.21", reserved: "0.4", most: "5", endsAt: inMinutes(300) }, { scope: "user", measure: "runs", used: "120", reserved: "0", most: "200", endsAt: inMinutes(300) }, { scope: "accounts", measure: "tokens", used: "1200000", reserved: "0", most: "9000000" }] },
  "GET /api/me/usage/receipts": { items: [{ id: idOf(1), purpose: "title", data: { model: "gpt-6-mini", inputTokens: 320, outputTokens: 8 }, costUsd: "0.0001", createdAt: TIME }, { id: idOf(2), purpose: "embedding", data: { model: "embed-4", inputTokens: 9000 }, costUsd: "0.0009", createdAt: TIME }], nextCursor: "next" },
};
const SERVICES: Responses = {
  "GET /api/connections": {
    items: [
      service("Notes", { state: "connected", tools: 24, connectedAt: minutesAgo(3 * DAY) }),
      service("Issues of a company with a very long name", { state: "connected", tools: 8, needsScope: true, connectedAt: minutesAgo(DAY) }),
      service("Calendar", { description: "Appointments of your team." }),
      service("Files", { state: "expired" }),
      service("Wiki", { state: "removed" }),
    ],
  },
};
const MEMORIES: readonly Memory[] = [
  memory(1, "They prefer short answers with an example.", { kind: "preference", uses: 12 }),
  memory(2, "They work on a distributed queue in Python, and care about what happens when a worker dies in the middle of a job that has been running for hours.", { kind: "fact", scope: "thread", threadId: CHAT_ID, expiresAt: inMinutes(30 * DAY) }),
  memory(3, "يفضل الأجوبة بالعربية.", { kind: "instruction", scope: "agent", agent: "researcher", uses: 1 }),
];
const REMEMBERED: Responses = {
  "GET /api/memories": { items: [...MEMORIES], nextCursor: "next" },
  "GET /api/memories/proposals": { items: [{ id: idOf(1), scope: "user", kind: "fact", text: "They live in Lisbon.", threadId: CHAT_ID, createdAt: minutesAgo(3), expiresAt: inMinutes(DAY) }] },
  "GET /api/me/memory": { recall: true, extraction: "ask" },
  "GET /api/threads/*/memory": { personal: false },
};

function service(name: string, changes: Partial<AccountConnection>): AccountConnection {
  return { name, description: "", state: "disconnected", tools: 0, issuer: null, scopes: [], needsScope: false, connectedAt: null, usedAt: null, ...changes };
}

function session(number: number, userAgent: string, current: boolean) {
  return { id: idOf(number), current, userAgent, network: "203.0.113.0/24", createdAt: TIME, seenAt: minutesAgo(number), expiresAt: inMinutes(DAY) };
}

function memory(number: number, text: string, changes: Partial<Memory>): Memory {
  return { id: idOf(number), scope: "user", kind: "fact", text, createdAt: minutesAgo(number * DAY), uses: 0, ...changes };
}

const CONTEXT: Responses = {
  "GET /api/runs/*/parts": { items: [{ kind: "route", data: { agent: "researcher", confidence: 0.82, alternatives: [{ agent: "reviewer", confidence: 0.1 }], why: "It reads papers." }, runId: idOf(2), messageId: idOf(1002), seq: 0, createdAt: TIME }], done: false, nextAfter: 1 },
  "GET /api/runs/*/context": {
    calls: [
      {
        at: TIME, purpose: "answer", limit: 32_000, estimated: true, model: "anthropic:claude-opus-5", outcome: "tool_calls", inputTokens: 18_204,
        sections: [
          { name: "instructions", tokens: 420, items: 1, leftOut: [] }, { name: "memories", tokens: 210, items: 3, leftOut: [{ what: "memory:1", tokens: 30, why: "limit", count: 2 }] },
          { name: "summary", tokens: 900, items: 1, leftOut: [] }, { name: "turns", tokens: 12_300, items: 24, leftOut: [{ what: "message:1", tokens: 41_000, why: "summarised", count: 12 }] },
          { name: "files", tokens: 3_000, items: 1, leftOut: [{ what: "blob:1", tokens: 9_000, why: "shortened" }] }, { name: "tools", tokens: 1_800, items: 9, leftOut: [] },
        ],
      },
      { at: TIME, purpose: "summary", limit: 32_000, model: "openai:gpt-6-mini", outcome: "context_exceeded", sections: [{ name: "turns", tokens: 33_000, items: 40, leftOut: [] }] },
    ],
  },
};

const GUEST: Scenario = { messages: CHAT.messages ?? [] };
const REFUSED = new Refusal(403, "forbidden", "No.");
const RULES: Responses = { "GET /api/threads/*/tool-rules": { items: [{ pattern: "read_file", action: "allow" }, { pattern: "todo_*", action: "allow" }] } };

const states: readonly GalleryState[] = [
  { name: "settings", view, height: 720, scenario: CHAT, prepare: (page) => openSettings(page) },
  { name: "settings: models and instructions", view, height: 720, scenario: { ...CHAT, responses: { "GET /api/me/preferences": { titles: true, instructions: "Answer briefly.\nاكتب بالعربية عند الحاجة.", model: "openai:gpt-6-mini" } } }, prepare: settingsAt("answers") },
  { name: "settings: memory", view, height: 1100, scenario: { ...CHAT, thread: { ownerId: ADA.id }, responses: REMEMBERED }, prepare: wholeSection("memory") },
  { name: "settings: a memory is being added", view, height: 860, scenario: { ...CHAT, responses: { ...REMEMBERED, "GET /api/memories": { items: MEMORIES.slice(0, 1) }, "GET /api/memories/proposals": { items: [] } } }, prepare: wholeSection("memory"), act: (driver) => driver.press(".section-head .small") },
  { name: "settings: memory cannot be loaded", view, height: 640, scenario: { ...CHAT, responses: { ...REMEMBERED, "GET /api/memories": REFUSED, "GET /api/me/memory": REFUSED } }, prepare: settingsAt("memory") },
  { name: "settings: memory is loading", view, height: 640, scenario: { ...CHAT, responses: { "GET /api/memories": PENDING, "GET /api/memories/proposals": PENDING, "GET /api/me/memory": PENDING } }, prepare: settingsAt("memory") },
  { name: "settings: notifications", view, height: 480, scenario: CHAT, prepare: settingsAt("notifications") },
  { name: "settings: tools and services", view, height: 900, scenario: { ...CHAT, responses: SERVICES }, prepare: wholeSection("services") },
  { name: "settings: no services", view, height: 560, scenario: { ...CHAT, responses: { "GET /api/connections": { items: [] } } }, prepare: settingsAt("services") },
  { name: "settings: the account", view, height: 780, scenario: { ...CHAT, responses: ACCOUNT }, prepare: wholeSection("account") },
  { name: "settings: usage", view, height: 720, scenario: { ...CHAT, responses: ACCOUNT }, prepare: settingsAt("usage") },
  { name: "settings: usage of an account without limits", view, height: 480, scenario: { ...CHAT, responses: { "GET /api/me/usage": { items: [] }, "GET /api/me/usage/receipts": { items: [] } } }, prepare: settingsAt("usage") },
  { name: "settings: apps and tokens", view, height: 640, scenario: { ...CHAT, responses: ACCOUNT }, prepare: settingsAt("access") },
  { name: "settings: a new password", view, height: 640, scenario: { ...CHAT, responses: ACCOUNT }, prepare: settingsAt("account"), act: (driver) => driver.press(".setting [aria-expanded]") },
  { name: "settings: an account without apps and tokens", view, height: 480, scenario: { ...CHAT, responses: { ...ACCOUNT, "GET /api/tokens": { items: [] }, "GET /api/grants": { items: [] } } }, prepare: settingsAt("access") },
  { name: "settings: the account cannot be loaded", view, height: 780, scenario: { ...CHAT, responses: Object.fromEntries(Object.keys(ACCOUNT).map((name) => [name, REFUSED])) }, prepare: wholeSection("account") },
  { name: "settings: data", view, height: 480, scenario: { ...CHAT, responses: ACCOUNT }, prepare: settingsAt("data"), act: (driver) => driver.press("[aria-expanded]") },
  { name: "settings of a guest: models and instructions", view, height: 720, scenario: GUEST, prepare: settingsAt("answers") },
  { name: "settings of a guest: memory", view, height: 640, scenario: { ...GUEST, responses: { ...REMEMBERED, "GET /api/memories": { items: [] }, "GET /api/memories/proposals": { items: [] }, "GET /api/me/memory": { recall: false, extraction: "off" } } }, prepare: settingsAt("memory") },
  { name: "settings of a guest: tools and services", view, height: 480, scenario: GUEST, prepare: settingsAt("services") },
  { name: "settings of a guest: account", view, height: 480, scenario: GUEST, prepare: settingsAt("account") },
  { name: "settings of a guest: data", view, height: 480, scenario: GUEST, prepare: settingsAt("data") },
  { name: "the settings of a chat", view, height: 560, scenario: { ...CHAT, thread: { ownerId: ADA.id, title: "Leases and fencing tokens" }, responses: { ...REMEMBERED, ...RULES } }, prepare: open("chat-settings") },
  { name: "the settings of a chat without allowed tools, and memories are off", view, height: 480, scenario: { ...CHAT, thread: { ownerId: ADA.id }, responses: { ...REMEMBERED, "GET /api/me/memory": { recall: false, extraction: "off" }, "GET /api/threads/*/tool-rules": { items: [] } } }, prepare: open("chat-settings") },
  { name: "the settings of a chat cannot be loaded", view, height: 480, scenario: { ...CHAT, thread: { ownerId: ADA.id }, responses: { ...REMEMBERED, "GET /api/threads/*/memory": REFUSED, "GET /api/threads/*/tool-rules": REFUSED } }, prepare: open("chat-settings") },
  { name: "the memories of an answer", view: component(UsedMemories, {}), height: 460, scenario: { ...CHAT, responses: { "GET /api/runs/*/memories": { items: [{ id: idOf(1), text: "They prefer short answers.", score: 0.8, memory: { ...MEMORIES[0], id: idOf(1) } as Memory }, { id: idOf(9), text: "They live in Porto.", score: 0.6 }] } } } },
  { name: "what was sent to the model", view: component(Context, {}), height: 860, scenario: { ...CHAT, responses: CONTEXT }, act: (driver) => driver.press("summary") },
  { name: "what was sent to the model cannot be loaded", view: component(Context, {}), height: 320, scenario: { ...CHAT, responses: { "GET /api/runs/*/context": new Refusal(403, "forbidden", "No."), "GET /api/runs/*/parts": new Refusal(403, "forbidden", "No.") } } },
  { name: "agents", view, height: 1000, scenario: { ...CHAT, responses: { "GET /api/agents": { items: [...AGENTS] } } }, prepare: (page) => ((page.preferences.agent = "researcher"), open("gallery")(page)) },
  { name: "agents of a guest", view, height: 900, scenario: { responses: { "GET /api/agents": { items: [...AGENTS] } } }, prepare: open("gallery") },
  { name: "agents are loading", view, height: 320, scenario: { ...CHAT, responses: { "GET /api/agents": PENDING } }, prepare: open("gallery") },
  {
    name: "the tools of a new agent", view, height: 1200, prepare: open("gallery"),
    scenario: { ...CHAT, responses: { "GET /api/agents": { items: [...AGENTS] }, "GET /api/tools": { items: ["read_file", "grep", "fetch_url", "mail__send_message", "a_tool_with_a_very_long_name_of_many_words"].map((name) => ({ name, description: "", parameters: {}, permissions: [], timeout: 20, cost: "free", idempotent: true, source: "builtin", action: "allow" })) } } },
    act: async (driver) => {
      await driver.press(".find .small");
      await driver.press("fieldset label:nth-of-type(2) input");
      await driver.press(".tools li:nth-child(2) input");
    },
  },
  { name: "a new agent", view, height: 1000, scenario: { ...CHAT, responses: { "GET /api/agents": { items: [...AGENTS] } } }, prepare: open("gallery"), act: (driver) => driver.press(".find .small") },
];

export const settings: Group = { name: "settings", width: 640, states };
