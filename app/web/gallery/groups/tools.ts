// Tool calls: alone, in groups, with approvals and questions.

import type { Approval, Block, Tool, ToolBlock } from "@khala/client";

import { m } from "../../src/i18n/messages.ts";
import Bar from "../../src/autopilot/ControlBar.svelte";
import type { Responses } from "../responses.ts";
import { idOf, inMinutes, RUN_ID, TIME } from "../fixtures/ids.ts";
import { answer, blob, call, ended, question, text, writing } from "../fixtures/messages.ts";
import { component, type GalleryState, type Group, type Scenario } from "../state.ts";
import Messages from "../views/Messages.svelte";

const view = component(Messages, {});
const bar = component(Bar, {});
const ASKED = question(1, "Please tidy up the workspace.");
const STEP = { step: 3, maxSteps: 20, toolCount: 2, usage: { inputTokens: 5120, outputTokens: 840 }, costUsd: "0.0312" };
const ARGS = { path: "notes/2031-03-14 minutes of the meeting.md", content: "# Minutes\n\nNobody came." };
const BLOCKED = call(1, "delete_file", { state: "blocked", args: { path: "notes/old.md" }, digest: "d1", expiresAt: inMinutes(9) });
/** The name ends with characters that nobody would see: a control of direction, a tag, and a variation selector. */
const HIDDEN = { path: "notes/old\u202edm.\u{e0041}exe\ufe0f" };
const ASKS = call(1, "book_table", { state: "running", args: { city: "Lisbon" }, digest: "d1", reason: "Where would you like to sit?", expiresAt: inMinutes(4) });
const PROGRAM = { language: "python", code: "import csv\n\nwith open('notes/sales.csv') as file:\n    rows = list(csv.DictReader(file))\nprint(sum(float(row['amount']) for row in rows))" };
const MAIL = { to: "grace@example.com", subject: "Minutes of the meeting", body: "Dear Grace,\n\nplease find the minutes below.\n\nAda", urgent: false };
const NESTED = { id: "cus_4821", reason: { code: "duplicate", of: "cus_1077" } };
const SEVERAL = [
  BLOCKED,
  { ...BLOCKED, toolCallId: "call-2", args: { path: "notes/drafts/2031-02-27 a draft with a long name that nobody needs.md" } },
  { ...BLOCKED, toolCallId: "call-3", tool: "fetch_url", args: { url: "https://example.com/leases?page=2", format: "raw" } },
];
const EVERY: readonly ToolBlock[] = [
  call(1, "read_file", { args: { path: "notes/a.md" }, summary: "Read 120 lines." }),
  call(2, "edit_file", { args: ARGS, summary: "Changed 1 line.", durationMs: 12_400 }),
  call(3, "web_search", { state: "failed", args: { query: "leases" }, summary: "The search did not answer within 20 s.", durationMs: 20_000 }),
  call(4, "delete_file", { state: "failed", args: { path: "notes/old.md" }, summary: "Denied by Ada: I still need it.", durationMs: 0 }),
  call(5, "run_command", { state: "cancelled", args: { command: "make test" }, durationMs: 0 }),
  call(6, "a_tool_with_a_very_long_name_that_has_no_space", { state: "queued", args: { why: "to see what is cut where there is no room for all of it on one line" }, durationMs: 0 }),
  call(7, "run_command", { state: "running", args: { command: "make check" }, reason: "12 of 40 files checked", durationMs: 0 }),
];
const TOOL_NAMES = ["read_file", "web_search", "run_command", "search_archive_by_meaning"];
const PARALLEL: readonly ToolBlock[] = Array.from({ length: 32 }, (_, at) =>
  call(at + 1, TOOL_NAMES[at % TOOL_NAMES.length] ?? "", { step: at < 2 ? 1 : 2, args: { path: `notes/${at}.md` }, state: at < 26 ? (at % 9 === 8 ? "failed" : "completed") : "queued", durationMs: at < 26 ? 340 + 731 * at : 0 }));

function approval(changes: Partial<Approval> = {}): Approval {
  return { runId: RUN_ID, toolCallId: "call-1", tool: "delete_file", args: { path: "notes/old.md" }, digest: "d1", state: "pending", createdAt: TIME, expiresAt: inMinutes(9), mayEdit: true, ...changes };
}

function running(blocks: readonly Block[], changes: Scenario = {}): Scenario {
  return { messages: [ASKED, writing(2, blocks, { currentStep: STEP, toolStartedAt: { "call-7": Date.parse(TIME) } })], ...changes };
}

const TOOL: Tool = { name: "delete_file", description: "", parameters: {}, permissions: [], timeout: 20, cost: "free", idempotent: false, source: "builtin", action: "ask" };
const offering = (facts: Partial<Tool>): Responses => ({ "GET /api/tools": { items: [{ ...TOOL, ...facts }] } });
const asking = (pending: Approval): Responses => ({ "GET /api/runs/*/approvals": { items: [pending] } });
const question_ = approval({
  tool: "book_table", expiresAt: inMinutes(4),
  args: {
    question: "Where would you like to sit?", server: "Restaurants", fields: ["place", "guests", "date", "extras", "email", "quiet"],
    schema: {
      required: ["place", "guests"],
      properties: {
        place: { type: "string", title: "Place", enum: ["inside", "terrace"] }, guests: { type: "integer", title: "Guests", minimum: 1, maximum: 8, default: 2 },
        date: { type: "string", format: "date", title: "Date" }, extras: { type: "array", title: "Extras", items: { enum: ["high chair", "dog"] } },
        email: { type: "string", format: "email", title: "Email", description: "For the confirmation." }, quiet: { type: "boolean", title: "A quiet table" },
      },
    },
  },
});

const states: readonly GalleryState[] = [
  { name: "every state", view, scenario: running(EVERY) },
  { name: "a group that has ended", view, scenario: { messages: [ASKED, answer(2, [text("I look first."), ...EVERY.slice(0, 2), call(8, "glob", { step: 2, args: { pattern: "**/*.md" } }), text("Done: two files were changed.")])] } },
  { name: "many calls", view, height: 420, scenario: running(Array.from({ length: 40 }, (_, at) => call(at, at % 3 === 0 ? "todo_add" : "read_file", { args: { path: `notes/${at}.md` }, state: at < 34 ? "completed" : "running", durationMs: at < 34 ? 200 + 37 * at : 0 }))) },
  {
    name: "the details of a call", view,
    scenario: running([call(1, "web_search", { args: { query: "leases", limit: 3, filters: { language: "en", safe: true } }, output: { results: [{ title: "Leases", url: "https://example.com/leases", score: 0.91 }, { title: "عقود الإيجار", url: "https://example.com/ar", score: null }], total: 2 }, summary: "Found 2 pages." }), EVERY[6] ?? BLOCKED]),
    act: (driver) => driver.press(".card-head"),
  },
  { name: "a call failed", view, scenario: running([EVERY[2] ?? BLOCKED, EVERY[6] ?? BLOCKED]), act: (driver) => driver.press(".card-head") },
  { name: "a call needs approval", view, scenario: running([BLOCKED], { responses: asking(approval()) }) },
  { name: "the details of a request", view, scenario: running([BLOCKED], { responses: { ...asking(approval()), ...offering({ description: "Delete a file of the workspace.", destructive: true }) } }), act: (driver) => driver.press(".asked-toggle") },
  {
    name: "the JSON of a request", view, scenario: running([{ ...BLOCKED, tool: "crm__remove_customer", args: NESTED }], { responses: { ...asking(approval({ tool: "crm__remove_customer", args: NESTED })), ...offering({ name: "crm__remove_customer", title: "Remove customer", description: "Remove a customer and all of their orders.", destructive: true }) } }),
    act: async (driver) => {
      await driver.press(".asked-toggle");
      await driver.press("button", m.show_json());
    },
  },
  { name: "the ways to allow a call", view, height: 300, scenario: running([BLOCKED], { responses: asking(approval()) }), act: (driver) => driver.press(".asked-reaches") },
  {
    name: "a call is denied for a reason", view, scenario: running([BLOCKED], { responses: asking(approval()) }),
    act: async (driver) => {
      await driver.press(".asked-toggle");
      await driver.press("button", m.add_a_reason());
      await driver.type(".asked-reason", "I still need it.");
    },
  },
  { name: "a program needs approval", view, scenario: running([{ ...BLOCKED, tool: "run_code", args: PROGRAM }], { responses: asking(approval({ tool: "run_code", args: PROGRAM })) }) },
  { name: "a call of an MCP server needs approval", view, scenario: running([{ ...BLOCKED, tool: "mail__send_message", args: MAIL }], { responses: { ...asking(approval({ tool: "mail__send_message", args: MAIL })), ...offering({ name: "mail__send_message", title: "Send message" }) } }) },
  { name: "a destructive call of an MCP server needs approval", view, scenario: running([{ ...BLOCKED, tool: "crm__remove_customer", args: NESTED }], { responses: { ...asking(approval({ tool: "crm__remove_customer", args: NESTED })), ...offering({ name: "crm__remove_customer", title: "Remove customer", destructive: true }) } }) },
  { name: "several calls need approval", view, scenario: running(SEVERAL, { responses: { "GET /api/runs/*/approvals": { items: SEVERAL.map(({ toolCallId }) => approval({ toolCallId })) } } }) },
  {
    name: "the arguments hide characters", view,
    scenario: running([{ ...BLOCKED, args: HIDDEN }], { responses: asking(approval({ args: HIDDEN })) }),
    act: async (driver) => {
      await driver.press(".asked-toggle");
      await driver.press("button", m.edit_arguments());
      await driver.type("textarea", '{\n  "path": "notes/old.md\u202e"\n}');
    },
  },
  {
    name: "the arguments are edited", view, scenario: running([BLOCKED], { responses: asking(approval()) }),
    act: async (driver) => {
      await driver.press(".asked-toggle");
      await driver.press("button", m.edit_arguments());
      await driver.type("textarea", '{\n  "path": "notes/older.md"\n}');
    },
  },
  {
    name: "the edited arguments are no JSON", view, scenario: running([BLOCKED], { responses: asking(approval()) }),
    act: async (driver) => {
      await driver.press(".asked-toggle");
      await driver.press("button", m.edit_arguments());
      await driver.type("textarea", '{\n  "path": "notes/older.md\n}');
      await driver.press(".asked-split > button");
    },
  },
  { name: "somebody else has to approve", view, scenario: running([BLOCKED], { role: "viewer", thread: { visibility: "link" } }) },
  { name: "the approval has expired", view, scenario: running([{ ...BLOCKED, expiresAt: TIME }], { responses: asking(approval({ expiresAt: TIME })) }) },
  { name: "nobody approved in time", view, scenario: running([call(1, "delete_file", { state: "failed", args: { path: "notes/old.md" }, summary: "Nobody approved this in time.", durationMs: 0 }), EVERY[6] ?? BLOCKED]) },
  {
    name: "a call was approved with changes", view,
    scenario: { messages: [ASKED, answer(2, [call(1, "delete_file", { args: { path: "notes/older.md" }, reason: "Approved with changes by Ada", summary: "Deleted." })])], responses: asking(approval({ state: "approved", editedArgs: { path: "notes/older.md" }, decidedName: "Ada", decidedAt: TIME })) },
    act: (driver) => driver.press(".card-head"),
  },
  { name: "a tool asks a question", view, scenario: running([ASKS], { responses: asking(question_) }) },
  { name: "a tool asks to open a page", view, scenario: running([ASKS], { responses: asking(approval({ tool: "book_table", args: { question: "Please sign in.", url: "https://accounts.example.com/authorize?client=restaurants" } })) }) },
  {
    name: "a long output is not loaded yet", view,
    scenario: running([call(1, "run_command", { args: { command: "make test" }, summary: "Exit status 0.", blob: blob(1, "output.txt", "text/plain", 48_213, "collected 812 items\n") }), EVERY[6] ?? BLOCKED]),
    act: async (driver) => {
      await driver.press(".card-head");
      await driver.find(".wrong:not(:empty)"); // the server does not have the output
    },
  },
  { name: "the bar of a run", view: bar, scenario: running([EVERY[6] ?? BLOCKED]), prepare: ({ preferences }) => void Object.assign(preferences, { autopilot: true, budgetUsd: "0.05" }) },
  { name: "the bar waits for approval", view: bar, scenario: running([BLOCKED, { type: "notice", code: "model_switched", message: "The model is overloaded. Asking openai:gpt-6-mini instead." }]), prepare: ({ preferences }) => void (preferences.autopilot = true) },
  { name: "the graph of a run", view: bar, height: 640, scenario: running(EVERY), prepare: ({ preferences }) => void (preferences.autopilot = true), act: (driver) => driver.press('[aria-controls="run-graph"]') },
  { name: "the graph of 30 parallel calls", view: bar, height: 900, scenario: running(PARALLEL), prepare: ({ preferences }) => void (preferences.autopilot = true), act: (driver) => driver.press('[aria-controls="run-graph"]') },
  { name: "no progress", view, scenario: { messages: [ASKED, ended(2, [text("I could not find it."), ...EVERY.slice(2, 3)], "no_progress", { id: idOf(1002) })] } },
];

export const tools: Group = { name: "tools", width: 640, states };
