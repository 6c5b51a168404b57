// The operators' console: its page, lists, a run, an account, the past of a thread, and what others than operators see.

import AccessPage from "../../src/console/AccessPage.svelte";
import { session } from "../../src/console/session.svelte.ts";
import ThreadHistory from "../../src/console/parts/ThreadHistory.svelte";
import Accounts from "../../src/console/views/Accounts.svelte";
import AccountDetail from "../../src/console/views/AccountDetail.svelte";
import Audit from "../../src/console/views/Audit.svelte";
import RunDetail from "../../src/console/views/RunDetail.svelte";
import Runs from "../../src/console/views/Runs.svelte";
import Overview from "../../src/console/views/Overview.svelte";
import Schedules from "../../src/console/views/Schedules.svelte";
import Threads from "../../src/console/views/Threads.svelte";
import WebhookDetail from "../../src/console/views/WebhookDetail.svelte";
import Webhooks from "../../src/console/views/Webhooks.svelte";
import { ACCOUNT, ACTIVE, AUDIT, BUDGET, DELIVERIES, FAILED, GRANT, HISTORY, listOf, NO_SPEND, OVERVIEW, PAST, PAST_MESSAGES, REVISIONS, RUNS, SCHEDULES, SPEND, THREADS, WEBHOOK } from "../fixtures/console.ts";
import { RUN_ID } from "../fixtures/ids.ts";
import { ADA } from "../fixtures/people.ts";
import { PENDING, Refusal, type Responses } from "../responses.ts";
import { inConsole } from "../console-style.ts";
import type { PageDriver } from "../page-driver.ts";
import { component, whole, type GalleryState, type Group, type View } from "../state.ts";
import ConsolePage from "../views/ConsolePage.svelte";

const access = inConsole(whole(AccessPage));
const ONE_RUN: Responses = { "GET /api/console/runs/*": HISTORY };

const QUIET = { ...OVERVIEW, spendToday: NO_SPEND.total, failuresLastHour: 0, canceledLastHour: 0, approvalsWaiting: 0, queue: { queued: 0, running: 0, blocked: 0, oldestSeconds: 0, silentSeconds: 0 }, webhooks: { waiting: 0, oldestSeconds: 0, failing: 0, disabled: 0 } };
const NO_RUNS: Responses = { "GET /api/console/runs?state=active&limit=6": listOf([]), "GET /api/console/runs?state=error&limit=6": listOf([]) };
const LOADING: Responses = { "GET /api/console/overview": PENDING, "GET /api/console/spend": PENDING, "GET /api/console/runs?state=active&limit=6": PENDING, "GET /api/console/runs?state=error&limit=6": PENDING };

function state(name: string, view: View, responses: Responses): GalleryState {
  return { name, view: inConsole(view), scenario: { responses } };
}

function signIn(): void {
  Object.assign(session, { state: "admin", user: ADA });
}

const states: readonly GalleryState[] = [
  {
    name: "the overview", view: inConsole(whole(ConsolePage)), height: 900, prepare: signIn,
    scenario: {
      responses: {
        "GET /api/console/overview": OVERVIEW, "GET /api/console/spend": SPEND,
        "GET /api/console/runs?state=active&limit=6": listOf(ACTIVE), "GET /api/console/runs?state=error&limit=6": listOf(FAILED),
      },
    },
  },
  state("the overview of a new server", component(Overview, {}), { "GET /api/console/overview": QUIET, "GET /api/console/spend": NO_SPEND, ...NO_RUNS }),
  state("the overview while it loads", component(Overview, {}), LOADING),
  state("runs in all states", component(Runs, {}), { "GET /api/console/runs": listOf(RUNS) }),
  { ...state("a run that waits for approval", component(RunDetail, { id: RUN_ID }), ONE_RUN), act: (driver) => driver.press(".gantt li:nth-child(3) button") },
  { ...state("a run that cannot be ended", component(RunDetail, { id: RUN_ID }), { ...ONE_RUN, "POST /api/console/runs/*/end": new Refusal(409, "conflict", "The run has ended already.") }), height: 420, act: endRun },
  state("an account that has used up its budget", component(AccountDetail, { id: ACCOUNT.id }), { "GET /api/console/accounts/*": ACCOUNT, "GET /api/console/budgets/*": BUDGET }),
  state("a webhook that fails", component(WebhookDetail, { id: WEBHOOK.id }), { "GET /api/console/webhooks/*": WEBHOOK, "GET /api/console/webhooks/*/deliveries": listOf(DELIVERIES) }),
  state("the past of a thread", component(ThreadHistory, { thread: PAST, grant: GRANT, ontitle: () => undefined }), { "GET /api/console/threads/*/revisions": listOf(REVISIONS), "GET /api/console/threads/*/at": PAST_MESSAGES }),
  state("threads", component(Threads, {}), { "GET /api/console/threads": listOf(THREADS) }),
  state("accounts", component(Accounts, {}), { "GET /api/console/accounts": listOf([ACCOUNT, { ...ACCOUNT, id: PAST.id, name: null, blockedAt: PAST.createdAt, admin: false, plan: null }]) }),
  state("schedules", component(Schedules, {}), { "GET /api/console/schedules": listOf(SCHEDULES) }),
  state("webhooks", component(Webhooks, {}), { "GET /api/console/webhooks": listOf([WEBHOOK]) }),
  state("the audit log", component(Audit, {}), { "GET /api/console/audit": listOf(AUDIT) }),
  state("an empty list", component(Schedules, {}), { "GET /api/console/schedules": listOf([]) }),
  state("a list that cannot be loaded", component(Audit, {}), { "GET /api/console/audit": new Refusal(500, "internal", "The server made a mistake.") }),
  { name: "signing in", view: access, height: 420, prepare: () => void Object.assign(session, { state: "signed-out", methods: { registration: true, oidc: { name: "Example ID" }, publicThreads: true, undoSeconds: 10 } }) },
  { name: "an account that is no administrator", view: access, height: 420, prepare: () => void Object.assign(session, { state: "refused", user: ADA }) },
];

async function endRun(driver: PageDriver): Promise<void> {
  await driver.press("button", "End run now");
  await driver.press("dialog .danger");
  await driver.find("dialog .bad", "The run has ended already.");
}

export const operators: Group = { name: "console", width: 960, states };
