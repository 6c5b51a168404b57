// The responses of the server in the gallery. A request that has none is an error of the state.

import type {
  AccountConnection, Agent, Approval, ClientGrant, CreatedToken, Invitation, Items, Link, Member, Memory, MemoryProposal, MemorySettings, Models, Page, Part, PlanDetail, PlanEventEntry,
  RunContext, Schedule, SchedulePreview, SearchHit, Session, SignInMethods, StepDetail, ThreadAccess, ThreadMemorySettings, Token, Tool, ToolRuleList, UsageReceipt, Used, UsedMemory, User, ReadResult,
} from "@khala/client";
import type { AccountBudget, AccountDetail, AccountItem, AuditItem, ConsolePage, ConsoleRunHistory, DeliveryItem, Overview, PastThread, RevisionItem, RunChange, RunItem, ScheduleItem, SpendReport, ThreadItem, WebhookItem } from "../src/console/types.ts";
import type { FolderSettings } from "../src/chats/folder-actions.ts";
import type { FolderFile } from "../src/chats/folder-files.svelte.ts";
import type { Feedback } from "../src/conversation/answer-ratings.svelte.ts";
import type { ServerPreferences } from "../src/conversation/model-list.svelte.ts";
import type { ChatFolder } from "../src/state/page-model.ts";
import type { WorkspacePage } from "../src/panel/workspace-files.ts";
import { isSanitizer, withDiagramFont } from "./diagram-font.ts";
import { MODELS } from "./fixtures/models.ts";

/** A response that never comes. */
export const PENDING = Symbol("pending");

/** An error. `code` is one that no retry helps against, such as `forbidden`. */
export class Refusal {
  readonly status: number;
  readonly code: string;
  readonly detail: string;

  constructor(status: number, code: string, detail: string) {
    [this.status, this.code, this.detail] = [status, code, detail];
  }
}

/** The bodies of responses by request. `*` stands for an id. A name with a query goes before one without. */
interface Bodies {
  "GET /api/models": Models;
  "GET /api/auth": SignInMethods;
  "GET /api/agents": Items<Agent>;
  "GET /api/search": Page<SearchHit>;
  "GET /api/memories": Page<Memory>;
  "GET /api/memories/proposals": Items<MemoryProposal>;
  "GET /api/me": User;
  "GET /api/me/memory": MemorySettings;
  "GET /api/me/preferences": ServerPreferences;
  "GET /api/me/folders": Items<ChatFolder>;
  "GET /api/me/folder": FolderSettings;
  "GET /api/me/folder/files": Items<FolderFile>;
  "POST /api/me/folder/files": never;
  "GET /api/me/sessions": Items<Session>;
  "GET /api/me/usage": Items<Used>;
  "GET /api/me/usage/receipts": Page<UsageReceipt>;
  "GET /api/schedules": Page<Schedule>;
  "GET /api/schedules/preview": SchedulePreview;
  "GET /api/tokens": Items<Token>;
  "POST /api/tokens": CreatedToken;
  "GET /api/grants": Items<ClientGrant>;
  "GET /api/connections": Items<AccountConnection>;
  "GET /api/tools": Items<Tool>;
  "GET /api/invitations": Items<Invitation>;
  "POST /api/auth/login": User;
  "POST /api/threads/*/send": never;
  "POST /api/threads/*/blobs": never;
  "PUT /api/threads/*/read": null;
  "GET /api/threads/*/access": ThreadAccess;
  "GET /api/threads/*/feedback": Items<Feedback>;
  "GET /api/threads/*/links": Items<Link>;
  "GET /api/threads/*/members": Items<Member>;
  "GET /api/threads/*/memory": ThreadMemorySettings;
  "GET /api/threads/*/tool-rules": ToolRuleList;
  "GET /api/threads/*/workspace": WorkspacePage;
  "GET /api/threads/*/workspace/file": Blob;
  "PUT /api/threads/*/workspace/file": never;
  "GET /api/plans/*": PlanDetail;
  "GET /api/plans/*/steps": Items<StepDetail>;
  "GET /api/plans/*/events": Items<PlanEventEntry>;
  "GET /api/plans/*/events?stepId=s2&limit=500": Items<PlanEventEntry>;
  "GET /api/plans/*/events?stepId=s4&limit=500": Items<PlanEventEntry>;
  "GET /api/runs/*/approvals": Items<Approval>;
  "GET /api/runs/*/context": RunContext;
  "GET /api/runs/*/parts": { items: Part[]; done: boolean; nextAfter: number };
  "GET /api/runs/*/memories": Items<UsedMemory>;
  "GET /api/blobs/*": Blob;
  "GET /api/blobs/*/lines": ReadResult;
  "GET /api/console/overview": Overview;
  "GET /api/console/spend": SpendReport;
  "GET /api/console/runs": ConsolePage<RunItem>;
  "GET /api/console/runs?state=active&limit=6": ConsolePage<RunItem>;
  "GET /api/console/runs?state=error&limit=6": ConsolePage<RunItem>;
  "GET /api/console/runs/*": ConsoleRunHistory;
  "POST /api/console/runs/*/end": RunChange;
  "GET /api/console/threads": ConsolePage<ThreadItem>;
  "GET /api/console/threads/*/revisions": ConsolePage<RevisionItem>;
  "GET /api/console/threads/*/at": PastThread;
  "GET /api/console/accounts": ConsolePage<AccountItem>;
  "GET /api/console/accounts/*": AccountDetail;
  "GET /api/console/budgets/*": AccountBudget;
  "GET /api/console/webhooks": ConsolePage<WebhookItem>;
  "GET /api/console/webhooks/*": WebhookItem;
  "GET /api/console/webhooks/*/deliveries": ConsolePage<DeliveryItem>;
  "GET /api/console/schedules": ConsolePage<ScheduleItem>;
  "GET /api/console/audit": ConsolePage<AuditItem>;
}

export type Responses = { readonly [Name in keyof Bodies]?: Bodies[Name] | Refusal | typeof PENDING };

const RESPONSES: Responses = {
  "GET /api/threads/*/workspace/file": new Refusal(404, "not_found", "There is no such file."),
  "GET /api/models": MODELS,
  "GET /api/auth": { registration: true, oidc: { name: "Example ID" }, publicThreads: true, undoSeconds: 10 },
  "GET /api/agents": { items: [] },
  "GET /api/tools": { items: [] },
  "GET /api/me/preferences": { titles: true },
  "GET /api/me/folders": { items: [] },
  "GET /api/me/folder/files": { items: [] },
  "GET /api/connections": { items: [] },
  "GET /api/schedules": { items: [] },
  "PUT /api/threads/*/read": null,
  "GET /api/threads/*/feedback": { items: [] },
  "GET /api/threads/*/tool-rules": { items: [] },
  "POST /api/threads/*/send": PENDING,
};

const ID = /\/[0-9a-f]{8}-[0-9a-f-]{27}(?=\/|$)/g;

/** The gallery's own files, as the programs that draw diagrams. */
const FILES = "/assets/";

/** Respond to all requests of this frame but those for files. Returns the requests that have no response, as they come. */
export function respondToRequests(given: Responses): string[] {
  const responses: Record<string, unknown> = { ...RESPONSES, ...given };
  const unknown: string[] = [];
  const load = globalThis.fetch.bind(globalThis);
  globalThis.fetch = (input, { method = "GET" } = {}) => {
    const { pathname, search } = new URL(input instanceof Request ? input.url : input, location.origin);
    if (pathname.startsWith(FILES)) return isSanitizer(pathname) ? load(input).then(withDiagramFont) : load(input);
    const path = `${method} ${pathname.replaceAll(ID, "/*")}`;
    const name = path + search in responses ? path + search : path;
    if (!(name in responses)) unknown.push(name);
    return responses[name] === PENDING ? new Promise<Response>(() => undefined) : Promise.resolve(responseOf(responses[name]));
  };
  return unknown;
}

function responseOf(body: unknown): Response {
  if (body === undefined) return problem(new Refusal(404, "not_found", "There is nothing here."));
  if (body instanceof Refusal) return problem(body);
  if (body instanceof Blob) return new Response(body);
  return body === null ? new Response(null, { status: 204 }) : Response.json(body);
}

function problem({ status, code, detail }: Refusal): Response {
  return Response.json({ type: "about:blank", title: code, status, code, detail }, { status });
}
