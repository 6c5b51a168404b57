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

/** The most that one run may use; where the operator's limit is lower, that counts. `usd` is best a string. */
export interface RunBudget {
  usd?: string;
  tokens?: number;
  seconds?: number;
  toolCalls?: number;
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

/** A thread to create. If the client generates the id and the key, it can safely repeat the request. */
export interface NewThread {
  id?: string;
  anonKey?: string;
  title?: string;
}

/** Changes of a thread. Fields that are absent stay as they are. */
export interface ThreadChanges {
  title?: string | null;
  visibility?: "private" | "link" | "public";
  activeLeaf?: string;
}

/** A message to answer. If the client generates `messageId`, it can safely repeat the request. */
export interface NewMessage {
  text: string;
  messageId?: string;
  parentId?: string | null;
  attachments?: string[];
  options?: RunOptions;
}

/** A message to answer again. If the client generates `answerId`, it can safely repeat the request. */
export interface RegenerateRequest {
  messageId: string;
  answerId?: string;
  options?: RunOptions;
}

/**
 * The decision on a pending tool call.
 *
 * `digest` names the version of the call that the user saw. `editedArgs` replace the arguments of the call.
 */
export interface DecisionRequest {
  approved: boolean;
  reason?: string;
  editedArgs?: Record<string, unknown>;
  digest?: string;
}

/** The reason why a run is canceled, for the log. */
export interface CancelRequest {
  reason?: string;
}

/** The revision up to which the user has read the thread. */
export interface ReadPosition {
  revision: number;
}

/** The key of the anonymous thread to claim. */
export interface ClaimRequest {
  anonKey: string;
}

/** An anonymous thread to claim, and its key. */
export interface ThreadClaim {
  threadId: string;
  anonKey: string;
}

/** Anonymous threads to claim. Each claim succeeds or fails independently. */
export interface ClaimsRequest {
  items: ThreadClaim[];
}

/** The new role of a user in the thread. */
export interface NewRole {
  role: Role;
}

/** A share link to create. */
export interface NewLink {
  role: "viewer" | "editor";
  expiresAt?: string;
}

/** An account to create, and anonymous threads to claim for it. */
export interface Registration {
  email: string;
  password: string;
  name?: string;
  claim?: ThreadClaim[];
}

/** The credentials of an account, and anonymous threads to claim for it. */
export interface Login {
  email: string;
  password: string;
  claim?: ThreadClaim[];
}

/**
 * The new password.
 *
 * An account that has a password must send it as `current`. An account that has none must send the `email` to sign in
 * with.
 */
export interface NewPassword {
  new: string;
  current?: string;
  email?: string;
}

/** The account's password. An account without a password sends none. */
export interface AccountDeletion {
  password?: string;
}

/** The user's new name, or null for none. */
export interface ProfileChanges {
  name: string | null;
}

/** An API token to create. */
export interface NewToken {
  name: string;
  scopes?: Scope[];
  expiresAt?: string;
}

/** A tool to create: a program that reads its arguments as JSON from stdin and writes its result to stdout. */
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

/** The user's decision on a tool of their own. With `digest`, it applies only to the version that they saw. */
export interface ToolDecision {
  approved: boolean;
  digest?: string;
}

/** Rules for tool calls. The last rule that matches applies. */
export interface ToolRuleList {
  items: Rule[];
}

// What answers carry

/** What a send made, or had made when it was tried before. */
export interface Sent {
  threadId: string;
  userMessageId: string;
  assistantMessageId: string;
  runId: string;
  revision: number;
}

/** What became of one claim among several: without `code` the thread is the caller's. */
export interface Claimed {
  threadId: string;
  code?: string;
}

/** A share link, without its key. */
export interface Link {
  id: string;
  role: Role;
  createdAt: string;
  expiresAt?: string;
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

/** One change. `detail` never holds a secret. */
export interface Trace {
  id: string;
  action: string;
  threadId?: string;
  network?: string;
  detail: Record<string, unknown>;
  createdAt: string;
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

/** What becomes of calls of the tools whose name fits the pattern (`*` and `?` stand for what they do in shells). */
export interface Rule {
  pattern: string;
  action: "allow" | "ask" | "deny";
}

/** A tool that the caller may use. `action` is the result of all rules for it. `timeout` is in seconds. */
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

/** A model, named as in `RunOptions.model`. Prices are decimal strings, and absent if they are unknown. */
export interface Model {
  model: string;
  provider: string;
  name: string;
  inputUsdPerMillion?: string;
  outputUsdPerMillion?: string;
  contextTokens?: number;
}

/** The models that a request may name, and the default model. */
export interface Models {
  default: string;
  items: Model[];
}

/** The thread, and the key of an anonymous one. The key is returned only once. */
export interface CreatedThread {
  thread: Thread;
  anonKey?: string;
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

/** The caller's role in a thread, and when it expires, if it does. */
export interface ThreadAccess {
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

/** A share link and its key, which is returned only once. `url` opens the thread in a browser. */
export interface CreatedLink {
  id: string;
  role: Role;
  createdAt: string;
  expiresAt?: string;
  shareKey: string;
  url: string;
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

/** The account, and the result of each claim. */
export interface SignedInUser {
  id: string;
  name?: string;
  email?: string;
  password: boolean;
  identities: LinkedIdentity[];
  createdAt: string;
  claimed: Claimed[];
}

/** The session has ended. To end the session at the OpenID Provider too, go to `endSessionUrl`. */
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

/** An API token and its secret. The secret is returned only once. */
export interface CreatedToken {
  id: string;
  name: string;
  scopes: Scope[];
  createdAt: string;
  usedAt?: string;
  expiresAt?: string;
  token: string;
}

/** An OpenID Provider that users can sign in with. `name` is for display. */
export interface SignInProvider {
  name: string;
}

/** The ways to sign in to this server. */
export interface SignInMethods {
  registration: boolean;
  oidc: SignInProvider | null;
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

/** A blob and the URL of its content. */
export interface BlobLink {
  blobId: string;
  size: number;
  sha256: string;
  mediaType: string;
  preview?: string;
  name?: string;
  url: string;
}

/**
 * A tool call with its complete result.
 *
 * The result is `output`, or `blob` if it is large. Both are null until there is a result. Large arguments are in
 * `argsBlob`.
 */
export interface ToolCallDetail {
  taskId: string;
  tool: string;
  state: string;
  step: number;
  args: Record<string, unknown> | null;
  argsBlob: BlobLink | null;
  reason: string | null;
  summary: string | null;
  output: unknown;
  blob: BlobLink | null;
  durationMs: number | null;
}

/** Parts of a run. Repeat with `after=nextAfter` until `done`: the run has ended and all its parts were read. */
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

/** One page of a list. `nextCursor` is present if there are more pages. */
export interface Page<T> {
  items: T[];
  nextCursor?: string;
}

/** Older messages, in order. */
export interface OlderMessages<T> {
  items: T[];
  hasMore: boolean;
}

/** A complete list. */
export interface Items<T> {
  items: T[];
}
