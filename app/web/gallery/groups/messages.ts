// Questions and answers in all their states.

import type { Part } from "@khala/client";

import { composerState } from "../../src/conversation/composer-state.svelte.ts";
import { PENDING, Refusal } from "../responses.ts";
import { idOf, minutesAgo, RUN_ID } from "../fixtures/ids.ts";
import { ARABIC_ANSWER, ARABIC_QUESTION, LONG_QUESTION, LONG_WORD, MARKDOWN, WIDE } from "../fixtures/markdown.ts";
import { answer, blob, call, ended, FINISH, question, text, writing } from "../fixtures/messages.ts";
import { ADA } from "../fixtures/people.ts";
import type { PageDriver } from "../page-driver.ts";
import { component, type GalleryState, type Group } from "../state.ts";
import Messages from "../views/Messages.svelte";

const view = component(Messages, {});
const ASKED = question(1, "How do leases keep two workers from doing the same job?");
const ANSWERED = answer(2, "A lease is a lock that **expires**. A worker that dies gives up its job by itself.");
/** Nodes that a diagram fills itself have text that contrasts with the fill, in both themes. */
const DIAGRAMS = `A worker claims a job only under a lease:

\`\`\`mermaid
flowchart LR
  job[Job] -->|claims| lease{Lease free?}
  lease -->|yes| run(Run)
  lease -->|no| wait[Wait]
  style wait fill:#fde68a
\`\`\`
`;
const REASONING = [{ runId: RUN_ID, messageId: ANSWERED.id, seq: 0, kind: "reasoning-delta", data: { text: "A worker can die while it holds a lock. So the lock has to end by itself, and a worker that is only slow has to notice that it lost it." }, createdAt: minutesAgo(14) }] satisfies Part[];
const FOUND = [
  call(1, "web_search", { args: { query: "advisory locks" }, output: { results: [
    { title: "PostgreSQL: Documentation: 18: 13.3. Explicit Locking", url: "https://www.postgresql.org/docs/current/explicit-locking.html" },
    { title: "How to do distributed locking", url: "https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html" },
    { title: "أقفال قاعدة البيانات", url: "https://ar.example.org/locks" },
    { title: "Leases: an efficient fault-tolerant mechanism for distributed file cache consistency", url: "https://dl.acm.org/doi/10.1145/74850.74870" },
  ] } }),
  call(2, "fetch_url", { args: { url: "https://a-very-long-name-of-a-host-that-has-to-be-cut.example.com/data/leases.csv" }, summary: "1,204 bytes of text/csv from example.com" }),
];
const SUN = '<svg xmlns="http://www.w3.org/2000/svg" width="320" height="180" viewBox="0 0 16 9"><rect width="16" height="9" fill="#38bdf8"/><circle cx="8" cy="4.5" r="2.5" fill="#fde047"/></svg>';
/** Diagrams are drawn by a program that takes a second to start. */
const DIAGRAM_FRAMES = 600;

async function findDiagram(driver: PageDriver): Promise<void> {
  await driver.find(".picture img", undefined, DIAGRAM_FRAMES);
}

async function findPicture(driver: PageDriver): Promise<void> {
  await driver.find(".picture img:not([hidden])");
}

function unsent(name: string, post: Refusal | typeof PENDING, connection: "live" | "offline" = "live"): GalleryState {
  return { name, view, scenario: { messages: [ASKED, ANSWERED], connection, responses: { "POST /api/threads/*/send": post } }, prepare: ({ chat }) => chat?.send("And if its clock is wrong?") };
}

const states: readonly GalleryState[] = [
  { name: "a question and an answer", view, scenario: { messages: [ASKED, ANSWERED] } },
  { name: "an earlier answer hides its buttons", view, scenario: { messages: [ASKED, ANSWERED, question(3, "And in one word?"), answer(4, "Locks.")] } },
  { name: "details and rating of an answer", view, scenario: { messages: [ASKED, { ...ANSWERED, finish: { ...FINISH, memories: 3 } }], responses: { "GET /api/threads/*/feedback": { items: [{ messageId: ANSWERED.id, rating: "up" }] } } }, act: (driver) => driver.press('[aria-expanded="false"].icon.act:not([aria-haspopup])') },
  {
    name: "the reasoning of an answer", view, scenario: { messages: [ASKED, { ...ANSWERED, finish: { ...FINISH, reasoningMs: 12_400 } }], responses: { "GET /api/runs/*/parts": { items: REASONING, done: true, nextAfter: 1 } } },
    act: async (driver) => {
      await driver.press(".thought");
      await driver.find(".reasoning [dir]");
    },
  },
  { name: "the menu of an answer", view, height: 460, scenario: { messages: [ASKED, ANSWERED] }, act: (driver) => driver.press('.assistant [aria-haspopup="menu"]') },
  { name: "Markdown", view, scenario: { messages: [answer(2, MARKDOWN)] } },
  { name: "what is wider than a phone", view, scenario: { messages: [answer(2, WIDE)] } },
  { name: "the sources of an answer", view, scenario: { messages: [ASKED, answer(2, [...FOUND, text("A lease is a [lock that expires](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html).")])] } },
  { name: "all sources of an answer", view, scenario: { messages: [ASKED, answer(2, [...FOUND, text("A lease is a lock that expires.")])] }, act: (driver) => driver.press(".sources button") },
  { name: "diagrams", view, scenario: { messages: [answer(2, DIAGRAMS)] }, act: findDiagram },
  { name: "right-to-left text", view, scenario: { messages: [question(1, ARABIC_QUESTION), answer(2, ARABIC_ANSWER)] } },
  { name: "a long question is folded", view, scenario: { messages: [question(1, LONG_QUESTION), answer(2, `See ${LONG_WORD}.`)] } },
  { name: "an answer begins", view, scenario: { messages: [ASKED, writing(2, [], { updatedAt: minutesAgo(0) })] } },
  { name: "the model thinks for a while", view, scenario: { messages: [ASKED, writing(2, [], { updatedAt: minutesAgo(0.2) })] } },
  { name: "the model thinks after a tool call", view, scenario: { messages: [ASKED, writing(2, [text("I look first."), call(1, "read_file", { args: { path: "notes/leases.md" }, summary: "Read 120 lines." })])] } },
  { name: "an answer is being written", view, scenario: { messages: [ASKED, writing(2, "A lease is a lock that **expires**. Each worker has to renew")] } },
  { name: "an answer waits for another one", view, scenario: { messages: [ASKED, writing(2, "A lease is a lock that"), question(3, "In one sentence, please."), writing(4, [], { status: "draft" })] } },
  {
    name: "answers that ended early", view,
    scenario: {
      messages: [
        ASKED, ended(2, "A lease is a lock that", "canceled"), ended(3, "A lease is a lock that", "budget"), ended(4, "A lease is a lock that", "length"), ended(5, [], "no_progress"),
        ended(6, "A lease is a lock that", "error", { failure: { code: "unavailable", message: "The provider answered 503." } }),
        ended(7, [], "error", { updatedAt: minutesAgo(0), failure: { code: "rate_limited", message: "The provider limits the requests.", retryAfter: 25 } }),
      ],
    },
  },
  {
    name: "the details of a failed answer", view,
    scenario: { messages: [ASKED, ended(2, "A lease is a lock that", "error", { failure: { code: "refused", cause: "invalid_key", message: "Anthropic rejected the API key." } })] },
    act: (driver) => driver.press(".ending .quiet"),
  },
  { name: "an answer can be continued", view, scenario: { messages: [ASKED, ended(2, "A lease is a lock that", "length")] } },
  {
    name: "the budget of an answer is used up", view,
    scenario: { messages: [ASKED, ended(2, "A lease is a lock that\n\nThis answer has reached its budget.", "budget", { failure: { code: "budget_exhausted", message: "This answer has reached its budget." } })] },
    prepare: ({ preferences }) => void Object.assign(preferences, { autopilot: true, budgetUsd: "0.05" }),
  },
  { name: "the server is lost in an answer", view, scenario: { connection: "offline", messages: [ASKED, writing(2, "A lease is a lock that **expires**. Each worker has to")] } },
  unsent("a message is being sent", PENDING),
  unsent("a message waits for the network", PENDING, "offline"),
  unsent("a message was refused for now", new Refusal(409, "run_active", "A run is active.")),
  unsent("a message was refused for good", new Refusal(413, "payload_too_large", "The message is too long.")),
  { name: "a question has two versions", view, scenario: { messages: [question(1, "How do locks work?", { id: idOf(900) }), ASKED, ANSWERED] } },
  {
    name: "a question is being edited", view, scenario: { messages: [ASKED, ANSWERED] },
    prepare: () => void (composerState.editingId = ASKED.id),
  },
  {
    name: "notices and a summary", view,
    scenario: { messages: [ASKED, answer(2, [{ type: "notice", code: "model_switched", message: "The model is overloaded. Asking openai:gpt-6-mini instead." }, { type: "compaction", summary: "They want to know how leases work, and have read about locks." }, text("A lease is a lock that expires."), { type: "notice", code: "resumed", message: "The answer was interrupted here, and goes on." }])] },
    act: (driver) => driver.press("summary"),
  },
  {
    name: "files", view,
    scenario: { messages: [question(1, [blobBlock(1, "a diagram of leases with a very long file name that has to be cut.pdf", "application/pdf", 284_113), blobBlock(2, "notes.txt", "text/plain", 812), text("What do you think of these?")]), answer(2, [text("I have written a summary."), blobBlock(3, "summary.md", "text/markdown", 2_048)])] },
  },
  { name: "a picture", view, scenario: { messages: [question(1, [blobBlock(1, "sun.svg", "image/svg+xml", 168), text("What is this?")]), answer(2, "The sun.")], responses: { "GET /api/blobs/*": new Blob([SUN], { type: "image/svg+xml" }) } }, act: findPicture },
  { name: "a picture that the browser cannot show", view, scenario: { messages: [question(1, [blobBlock(1, "photo.heic", "image/heic", 2_113_400), text("What is this?")])], responses: { "GET /api/blobs/*": new Blob(["x"], { type: "image/heic" }) } } },
  {
    name: "others in a shared chat", view,
    scenario: { user: ADA, thread: { visibility: "link" }, messages: [question(1, "How do leases work?", { authorId: idOf(102), authorName: "Grace Hopper" }), question(2, "And what is a fencing token?", { authorId: ADA.id }), question(3, "مرحبا", { authorId: idOf(103) }), answer(4, "A number that grows with each lease.", { authorName: "Build server" })] },
  },
  { name: "only to read", view, scenario: { role: "viewer", thread: { visibility: "link" }, messages: [ASKED, ended(2, "A lease is a lock that", "canceled")] } },
];

function blobBlock(number: number, name: string, mediaType: string, size: number) {
  return { type: "file", blob: blob(number, name, mediaType, size) } as const;
}

export const messages: Group = { name: "messages", width: 640, states };
