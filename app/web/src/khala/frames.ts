// Written by infra/frames.py from the server's own structs; change those, and run it again.

export const PROTOCOL = 1;
export const SUBPROTOCOL = "khala.v1";

// Words

export type Role = "viewer" | "editor" | "owner";

export type Scope = "read" | "write" | "account";

export type MessageRole = "user" | "assistant" | "system";

export type MessageStatus = "draft" | "streaming" | "final" | "error" | "canceled";

export type RunStatus = "queued" | "running" | "blocked" | "final" | "error" | "canceled";

export type ToolState = "queued" | "running" | "completed" | "failed" | "blocked" | "cancelled";

export type FinishReason =
  | "stop"
  | "length"
  | "max_steps"
  | "no_progress"
  | "tool_calls"
  | "budget"
  | "canceled"
  | "error";

export type Code =
  | "invalid_input"
  | "unauthorized"
  | "forbidden"
  | "not_found"
  | "thread_not_found"
  | "run_not_found"
  | "blob_not_found"
  | "method_not_allowed"
  | "request_timeout"
  | "conflict"
  | "run_active"
  | "already_decided"
  | "idempotency_key_reused"
  | "payload_too_large"
  | "unsupported_media_type"
  | "range_not_satisfiable"
  | "misdirected_request"
  | "rate_limited"
  | "budget_exhausted"
  | "internal"
  | "unavailable";

// State

/** Where something large is kept; `preview` is the beginning of what is text, `sha256` hex digits, `size` bytes. */
export interface BlobRef {
  blobId: string;
  size: number;
  sha256: string;
  mediaType: string;
  preview?: string;
  name?: string;
}

/** Tokens that model calls used; input includes what came from a cache. */
export interface Usage {
  inputTokens: number;
  outputTokens: number;
}

/** How a run ended. Exactly one per run, its last part. Times are milliseconds, cost is a decimal string in USD. */
export interface Finish {
  reason: FinishReason;
  usage: Usage;
  costUsd?: string;
  model?: string;
  provider?: string;
  timeToFirstTokenMs?: number;
  totalMs?: number;
  witness?: string;
}

/**
 * A conversation. `revision` counts its committed changes and is the one cursor of every transport.
 *
 * `activeLeaf` is the message at the end of the branch that is gone on from; none as long as nothing was said.
 */
export interface Thread {
  id: string;
  ownerId?: string;
  title?: string;
  visibility: "private" | "link" | "public";
  revision: number;
  activeLeaf?: string;
  createdAt: string;
  updatedAt: string;
}

/** A message. `content` is the fold of parts 0..seq-1; a delta leaves it out for answers, whose parts it carries. */
export interface Message {
  id: string;
  threadId: string;
  parentId?: string;
  role: MessageRole;
  status: MessageStatus;
  runId?: string;
  seq: number;
  authorId?: string;
  authorName?: string;
  content?: Block[];
  finish?: Finish;
  createdAt: string;
  updatedAt: string;
}

/** A thread in a user's list: what they are in it, and whether something awaits them there. */
export interface Listed {
  thread: Thread;
  role: Role;
  unread: boolean;
  running: boolean;
  needsApproval: boolean;
  changedAt: string;
}

/** One assistant turn. `attempt` counts the executors that worked on it. */
export interface Run {
  id: string;
  threadId: string;
  messageId: string;
  status: RunStatus;
  attempt: number;
  steps: number;
  cancelRequestedAt?: string;
  createdAt: string;
  finish?: Finish;
}

/**
 * What one model or tool call cost and how it went; `costUsd` is a decimal string, absent where unknown.
 *
 * `hash` (hex digits) is of this receipt and the `hash` of the one before: see `khala.domain.receipts`.
 */
export interface Receipt {
  runId: string;
  seq: number;
  type: "model" | "tool";
  toolCallId?: string;
  data: Record<string, unknown>;
  costUsd?: string;
  hash?: string;
  createdAt: string;
}

/** A thread at one revision, with its newest messages in order. */
export interface Snapshot {
  revision: number;
  thread: Thread;
  messages: Message[];
  hasMore: boolean;
  reset?: boolean;
}

/** What changed in a thread after revision `from` up to and including `revision`. */
export interface Delta {
  from: number;
  revision: number;
  thread?: Thread;
  messages: Message[];
  parts: Part[];
}

// Content

/** A run of text. */
export interface TextBlock {
  type: "text";
  text: string;
}

/** A notice where it happened, so that a late reader sees what a live one saw. */
export interface NoticeBlock {
  type: "notice";
  code: string;
  message: string;
}

/** A tool call with all that is known of it: queued, running, completed, failed, blocked or cancelled. */
export interface ToolBlock {
  type: "tool";
  toolCallId: string;
  tool: string;
  state: ToolState;
  step?: number;
  args?: Record<string, unknown>;
  argsBlob?: BlobRef;
  reason?: string;
  digest?: string;
  expiresAt?: string;
  summary?: string;
  output?: unknown;
  blob?: BlobRef;
  durationMs?: number;
}

/** What stands for the model in place of older turns; a person still has the turns themselves. */
export interface CompactionBlock {
  type: "compaction";
  summary: string;
  messageId?: string;
  step?: number;
}

/** A file that somebody attached to their message. */
export interface FileBlock {
  type: "file";
  blob: BlobRef;
}

export type Block = TextBlock | NoticeBlock | ToolBlock | CompactionBlock | FileBlock;

// Parts

/** More of the answer's text. */
export interface TextDelta {
  text: string;
}

/** More of the model's reasoning; stored only where the operator switched it on, and no part of the content. */
export interface ReasoningDelta {
  text: string;
}

/** The model asks for a tool. Large arguments are in a blob. */
export interface ToolCall {
  toolCallId: string;
  step: number;
  tool: string;
  args?: Record<string, unknown>;
  argsBlob?: BlobRef;
}

/**
 * A tool call changed its state: queued, running, blocked or cancelled.
 *
 * What is blocked waits for approval until `expiresAt`, of just the call that `digest` stands for; who approved may
 * have changed the arguments to `args`.
 */
export interface ToolStatus {
  toolCallId: string;
  state: ToolState;
  reason?: string;
  digest?: string;
  expiresAt?: string;
  args?: Record<string, unknown>;
  argsBlob?: BlobRef;
}

/** A tool call ended; `summary` is one line of at most 120 characters. A large output is in a blob. */
export interface ToolResult {
  toolCallId: string;
  ok: boolean;
  summary: string;
  durationMs: number;
  output?: unknown;
  blob?: BlobRef;
}

/** A round of tools begins; `usage` and `costUsd` are what the run has used until then. */
export interface Step {
  step: number;
  maxSteps: number;
  toolCount: number;
  usage?: Usage;
  costUsd?: string;
}

/** Something a reader should know: a model was switched, a call retried, a run resumed. */
export interface Notice {
  code: string;
  message: string;
}

/**
 * Older turns were summarised, because a model reads only so much.
 *
 * For the model the summary stands in place of all messages up to `messageId`, and of the answer's own steps up to
 * `step`.
 */
export interface Compaction {
  summary: string;
  messageId?: string;
  step?: number;
}

/** Why the run failed; a `finish` with reason `error` follows in the same commit. */
export interface RunFailure {
  code: string;
  message: string;
}

/** One part as it is stored and as it travels; `data` stays encoded until somebody has to look inside. */
export interface PartOf<Kind extends string, Data> {
  kind: Kind;
  data: Data;
  runId: string;
  messageId: string;
  seq: number;
  createdAt: string;
}

export type Part =
  | PartOf<"text-delta", TextDelta>
  | PartOf<"reasoning-delta", ReasoningDelta>
  | PartOf<"tool-call", ToolCall>
  | PartOf<"tool-status", ToolStatus>
  | PartOf<"tool-result", ToolResult>
  | PartOf<"step", Step>
  | PartOf<"notice", Notice>
  | PartOf<"compaction", Compaction>
  | PartOf<"error", RunFailure>
  | PartOf<"finish", Finish>;

// Frames of clients

/** Follow a thread, from after a revision or from its newest messages on. */
export interface Subscribe {
  type: "subscribe";
  threadId: string;
  after?: number;
  anonKey?: string;
  shareKey?: string;
}

/** Follow a thread no more. */
export interface Unsubscribe {
  type: "unsubscribe";
  threadId: string;
}

/** Be present in a thread that is followed, with a state of the client's own; null leaves. */
export interface Announce {
  type: "presence";
  threadId: string;
  state: Record<string, unknown> | null;
}

/** Follow the account's list of threads, from after a revision or as it is. */
export interface Watch {
  type: "watch";
  after?: number;
}

/** Follow the account's list no more. */
export interface Unwatch {
  type: "unwatch";
}

/** Show an account, for what is asked for from now on. */
export interface Authenticate {
  type: "authenticate";
  token: string;
}

/** Asks for a pong. */
export interface Ping {
  type: "ping";
}

export type ClientFrame = Subscribe | Unsubscribe | Announce | Watch | Unwatch | Authenticate | Ping;

// Frames of servers

/** Somebody who is present; only what `state` says is the client's own word. */
export interface Participant {
  id: string;
  userId?: string;
  name?: string;
  anonymous: boolean;
  state: Record<string, unknown>;
}

/** The server's first frame. */
export interface Hello {
  type: "hello";
  protocol: number;
  heartbeatSeconds: number;
}

/** A thread as it is: the first frame of a subscription without `after`, and whenever `after` cannot be served. */
export interface SnapshotFrame {
  type: "snapshot";
  revision: number;
  thread: Thread;
  messages: Message[];
  hasMore: boolean;
  reset?: boolean;
  threadId: string;
}

/** What changed; its `from` is the revision of the frame before. */
export interface DeltaFrame {
  type: "delta";
  from: number;
  revision: number;
  thread?: Thread;
  messages: Message[];
  parts: Part[];
  threadId: string;
}

/** The thread cannot be followed any more. */
export interface Gone {
  type: "gone";
  threadId: string;
  code: string;
}

/** Who is present in a thread, those who changed last first, and how many `more` there are. */
export interface Present {
  type: "presence";
  threadId: string;
  participants: Participant[];
  more?: number;
}

/** The newest of an account's list of threads: the first frame of a watch without `after`, as with snapshots. */
export interface AccountFrame {
  type: "account";
  revision: number;
  whole: true;
  threads: Listed[];
  hasMore: boolean;
  invitations?: Invitation[];
}

/**
 * What changed in an account's list; its `from` is the revision of the frame before.
 *
 * `invitations` are all that are open, if one has changed.
 */
export interface AccountDelta {
  type: "account";
  from: number;
  revision: number;
  threads: Listed[];
  removed: string[];
  invitations?: Invitation[];
}

/** The account that the connection acts for from now on. */
export interface Authenticated {
  type: "authenticated";
  userId: string;
}

/** Something that the client sent, or a subscription, failed. `path` names the place in the client's frame. */
export interface ErrorFrame {
  type: "error";
  threadId?: string;
  code: string;
  message: string;
  path?: string;
}

/** Answers a ping. */
export interface Pong {
  type: "pong";
}

export type ServerFrame =
  | Hello
  | SnapshotFrame
  | DeltaFrame
  | Gone
  | Present
  | AccountFrame
  | AccountDelta
  | Authenticated
  | ErrorFrame
  | Pong;

// What requests bring

/** The most that one run may use; where the operator's limit is lower, that counts. `usd` is best a string. */
export interface RunBudget {
  usd?: string;
  tokens?: number;
  seconds?: number;
  toolCalls?: number;
}

/**
 * A tool that whoever sends carries out: a run that calls it ends with reason `toolCalls`.
 *
 * `parameters` are a JSON Schema of an object; `{}` stands for one without fields.
 */
export interface FunctionTool {
  name: string;
  description?: string;
  parameters?: Record<string, unknown>;
}

/**
 * How a run shall go: `model` as `provider:name`; `ifBusy` says what happens while another run is active.
 *
 * With `autopilot` it goes on in rounds of tools, at most `maxSteps` of them, until it has an answer; without, it has
 * one round. `tools` are patterns of the tools that it is offered, by default all. Each reply of the model's has at
 * most `maxOutputTokens`. `instructions` are the model's for this run. Whatever `maxSteps` is said to be,
 * it is a number from 1 to 50.
 */
export interface RunOptions {
  model?: string;
  ifBusy?: "reject" | "queue" | "interrupt";
  budget?: RunBudget;
  autopilot?: boolean;
  maxSteps?: number;
  tools?: string[];
  functions?: FunctionTool[];
  maxOutputTokens?: number;
  instructions?: string;
}

/** A thread to be made. Send the id and the key of your own making, and the request may be repeated. */
export interface NewThread {
  id?: string;
  anonKey?: string;
  title?: string;
}

/** What shall change of a thread; what is absent stays. */
export interface ThreadChanges {
  title?: string | null;
  visibility?: "private" | "link" | "public";
  activeLeaf?: string;
}

/** A message to be answered. Send an id of your own making, and the request may be repeated. */
export interface Send {
  text: string;
  messageId?: string;
  parentId?: string | null;
  attachments?: string[];
  options?: RunOptions;
}

/** A message that is to have another answer. Send an id of your own making for that, and it may be repeated. */
export interface Regenerate {
  messageId: string;
  answerId?: string;
  options?: RunOptions;
}

/** What becomes of a call that waits. `digest` is that of the call which was seen; `editedArgs` replace its own. */
export interface Decision {
  approved: boolean;
  reason?: string;
  editedArgs?: Record<string, unknown>;
  digest?: string;
}

/** Why a run is called off, for the log. */
export interface Cancel {
  reason?: string;
}

/** The revision up to which the user has read. */
export interface ReadUpTo {
  revision: number;
}

/** The key of the thread that is to be the caller's. */
export interface Claim {
  anonKey: string;
}

/** A thread that is to be the caller's, and its key. */
export interface KeyedThread {
  threadId: string;
  anonKey: string;
}

/** Threads that are to be the caller's, each claimed by itself. */
export interface Claims {
  items: KeyedThread[];
}

/** What a user may do in the thread from now on. */
export interface NewRole {
  role: Role;
}

/** A share link to be made. */
export interface NewLink {
  role: "viewer" | "editor";
  expiresAt?: string;
}

/** An account to be made, and anonymous threads to take along. */
export interface Registration {
  email: string;
  password: string;
  name?: string;
  claim?: KeyedThread[];
}

/** Somebody signs in, and takes anonymous threads along. */
export interface Login {
  email: string;
  password: string;
  claim?: KeyedThread[];
}

/** The password that is to be; `current` of an account that has one, `email` to sign in by of one that has none. */
export interface NewPassword {
  new: string;
  current?: string;
  email?: string;
}

/** The account's password, where it has one. */
export interface Farewell {
  password?: string;
}

/** What the user is called. */
export interface Profile {
  name: string | null;
}

/** An API token to be made. */
export interface NewToken {
  name: string;
  scopes?: Scope[];
  expiresAt?: string;
}

/** A tool to be made: a program that reads its arguments as JSON on stdin and writes its result to stdout. */
export interface NewTool {
  name: string;
  description: string;
  parameters: Record<string, unknown>;
  language: "python" | "javascript";
  code: string;
  permissions?: ("fs" | "network" | "code" | "ui")[];
  timeout?: number;
  idempotent?: boolean;
}

/** The user's word on a tool; with its `digest`, on just the one that they saw. */
export interface ToolDecision {
  approved: boolean;
  digest?: string;
}

/** Rules, of which the last that fits goes. */
export interface Rules {
  items: Rule[];
}

// What answers carry

/** The thread; and the key of an anonymous one, which is told only now. */
export interface MadeThread {
  thread: Thread;
  anonKey?: string;
}

/** What a send made, or had made when it was tried before. */
export interface Sent {
  threadId: string;
  userMessageId: string;
  assistantMessageId: string;
  runId: string;
  revision: number;
}

/** A question and the answer to it, if there is one. */
export interface Approval {
  runId: string;
  toolCallId: string;
  tool: string;
  args: Record<string, unknown>;
  digest: string;
  state: "pending" | "approved" | "denied" | "expired";
  reason?: string;
  editedArgs?: Record<string, unknown>;
  decidedBy?: string;
  decidedName?: string;
  createdAt: string;
  expiresAt: string;
  decidedAt?: string;
  mayEdit?: boolean;
}

/** What the caller may do in a thread, and until when if that ends by itself. */
export interface Access {
  role: Role;
  expiresAt?: string;
}

/** A user with a role in a thread, or one who is `invited` to have it and may only read until they accept. */
export interface Member {
  userId: string;
  name?: string;
  role: Role;
  status: "member" | "invited";
}

/** A role in a thread that the account may accept or decline; `invitedBy` is what the sender is called now. */
export interface Invitation {
  threadId: string;
  title?: string;
  role: Role;
  inviterId?: string;
  invitedBy?: string;
  createdAt: string;
}

/** A share link, without its key. */
export interface Link {
  id: string;
  role: Role;
  createdAt: string;
  expiresAt?: string;
}

/** A share link, and its key, which is told only now; `url` opens it in a browser, with the key behind `#`. */
export interface MadeLink {
  id: string;
  role: Role;
  createdAt: string;
  expiresAt?: string;
  shareKey: string;
  url: string;
}

/** What became of one claim among several: without `code` the thread is the caller's. */
export interface Claimed {
  threadId: string;
  code?: string;
}

/** A way to sign in to an account at an OpenID Provider. */
export interface LinkedIdentity {
  issuer: string;
  email?: string;
}

/** An account. `password` says whether it can be signed in to by one. */
export interface User {
  id: string;
  name?: string;
  email?: string;
  password: boolean;
  identities: LinkedIdentity[];
  createdAt: string;
}

/** The account, and what became of the claims. */
export interface SignedIn {
  id: string;
  name?: string;
  email?: string;
  password: boolean;
  identities: LinkedIdentity[];
  createdAt: string;
  claimed: Claimed[];
}

/** The session is over. Going to `endSessionUrl` ends it at the OpenID Provider, too. */
export interface SignedOut {
  endSessionUrl?: string;
}

/** A browser that is signed in; `current` is the one that asks. */
export interface Session {
  id: string;
  current: boolean;
  userAgent?: string;
  network?: string;
  createdAt: string;
  seenAt: string;
  expiresAt: string;
}

/** An API token, without its secret. */
export interface Token {
  id: string;
  name: string;
  scopes: Scope[];
  createdAt: string;
  usedAt?: string;
  expiresAt?: string;
}

/** An API token, and its secret, which is told only now. */
export interface MadeToken {
  id: string;
  name: string;
  scopes: Scope[];
  createdAt: string;
  usedAt?: string;
  expiresAt?: string;
  token: string;
}

/** An OpenID Provider by whom one may sign in; `name` is for people. */
export interface Provider {
  name: string;
}

/** How one may sign in. */
export interface Ways {
  registration: boolean;
  oidc: Provider | null;
}

/**
 * What is used of a limit. Numbers are decimal strings; `used` is what ended runs used, `reserved` what is held
 * back for those under way; both are 0 again at `endsAt`.
 */
export interface Used {
  scope: "run" | "thread" | "user" | "accounts" | "key" | "network" | "anonymous";
  measure: "usd" | "tokens" | "runs" | "seconds";
  used: string;
  reserved: string;
  most: string;
  endsAt?: string;
}

/** One change. `detail` never holds a secret. */
export interface Trace {
  id: string;
  action: string;
  threadId?: string;
  network?: string;
  detail: Record<string, unknown>;
  createdAt: string;
}

/** A tool that the caller may use. `action` is what becomes of a call by all rules, `timeout` in seconds. */
export interface Tool {
  name: string;
  description: string;
  parameters: Record<string, unknown>;
  permissions: ("fs" | "network" | "code" | "ui")[];
  timeout: number;
  cost: "free" | "cheap" | "costly";
  idempotent: boolean;
  source: string;
  action: "allow" | "ask" | "deny";
}

/** A tool as its user sees it. `digest` stands for just this one, code and all: SHA-256, as hex digits. */
export interface UserTool {
  name: string;
  description: string;
  parameters: Record<string, unknown>;
  language: "python" | "javascript";
  permissions?: ("fs" | "network" | "code" | "ui")[];
  timeout?: number;
  idempotent?: boolean;
  code: string;
  digest: string;
  state: "pending" | "approved" | "rejected";
  createdAt: string;
  decidedAt?: string;
}

/** What becomes of calls of the tools whose name fits the pattern (`*` and `?` stand for what they do in shells). */
export interface Rule {
  pattern: string;
  action: "allow" | "ask" | "deny";
}

/** A model, as `RunOptions.model` names it. Prices are decimal strings, absent where they are not known. */
export interface Model {
  model: string;
  provider: string;
  name: string;
  inputUsdPerMillion?: string;
  outputUsdPerMillion?: string;
  contextTokens?: number;
}

/** The models that may be asked for by name, and the one that answers where none is named. */
export interface Models {
  default: string;
  items: Model[];
}

/**
 * A line, counted from 1, or where the last ones were asked for from the end: -1 is the last.
 *
 * `match` says that it has the pattern, `cut` that it is longer: what is here is its beginning, or around the match.
 */
export interface Line {
  line: number;
  text: string;
  match?: boolean;
  cut?: boolean;
}

/**
 * What was found. Ask the same with `after` set to `next` for more; without `next` there is none.
 *
 * A `next` may come with no lines at all, where the time was up. `binary`: this blob is no text and has no lines.
 */
export interface Look {
  items: Line[];
  next?: string;
  binary?: boolean;
}

/** A blob, and where its bytes are. */
export interface Kept {
  blobId: string;
  size: number;
  sha256: string;
  mediaType: string;
  preview?: string;
  name?: string;
  url: string;
}

/**
 * A tool call with all that it came to: `output`, null until there is some, or a `blob`, where it is large.
 *
 * Arguments that are large are in a blob, too.
 */
export interface Detail {
  taskId: string;
  tool: string;
  state: string;
  step: number;
  args: Record<string, unknown> | null;
  argsBlob: Kept | null;
  reason: string | null;
  summary: string | null;
  output: unknown;
  blob: Kept | null;
  durationMs: number | null;
}

/** Parts of a run; ask on with `after=nextAfter` until `done`, which says that the run has ended and this is all. */
export interface PartPage {
  items: Part[];
  nextAfter: number;
  done: boolean;
}

/** What is wrong with one place of the request, named as in `options.model`. */
export interface FieldError {
  path: string;
  message: string;
}

/** What went wrong: `code` is for programs, `detail` for people. */
export interface Problem {
  title: string;
  status: number;
  code: string;
  detail: string;
  errors?: FieldError[];
}

/** One page of a list; `nextCursor` leads on if there is more. */
export interface Page<T> {
  items: T[];
  nextCursor?: string;
}

/** Older messages, in order. */
export interface Older<T> {
  items: T[];
  hasMore: boolean;
}

/** A whole list. */
export interface Items<T> {
  items: T[];
}
