// Written by infra/frames.py from the server's own structs; change those, and run it again.

export const PROTOCOL = 1;
export const SUBPROTOCOL = "khala.v1";

// Words

export type Role = "viewer" | "editor" | "owner";

export type Scope = "read" | "write" | "account" | "execute";

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
  | "stale_epoch"
  | "run_ended"
  | "wrong_seq"
  | "stream_gone"
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

/** A reference to a blob. `size` is bytes, `sha256` hex digits, and `preview` the beginning of a text. */
export interface BlobRef {
  blobId: string;
  size: number;
  sha256: string;
  mediaType: string;
  preview?: string;
  name?: string;
}

/** The tokens of model calls. Input includes cached tokens. */
export interface Usage {
  inputTokens: number;
  outputTokens: number;
}

/** The end of a run: exactly one, as its last part. Times are milliseconds, cost is a decimal string in USD. */
export interface Finish {
  reason: FinishReason;
  usage: Usage;
  costUsd?: string;
  model?: string;
  provider?: string;
  timeToFirstTokenMs?: number;
  totalMs?: number;
  memories?: number;
  cachedTokens?: number;
  reasoningTokens?: number;
  reasoningMs?: number;
  witness?: string;
}

/**
 * A conversation. `revision` counts its committed changes and is the cursor of every transport.
 *
 * `activeLeaf` is the last message of the active branch; absent while the thread has no messages. `expiresAt` is
 * when a temporary thread is deleted; absent for all others.
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
  expiresAt?: string;
}

/**
 * A message. `content` is the fold of parts 0..seq-1. A delta has the new parts of answers, not their content.
 *
 * `step` is set for the task and the answer of a plan's step. They are a branch of their own, without a parent.
 */
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
  step?: StepRef;
  createdAt: string;
  updatedAt: string;
}

/** A thread list entry: the thread, the user's role, and whether something there needs their attention. */
export interface ThreadListEntry {
  thread: Thread;
  role: Role;
  unread: boolean;
  running: boolean;
  needsApproval: boolean;
  planWaits?: boolean;
  pinned?: boolean;
  archived?: boolean;
  folder?: string;
  changedAt: string;
}

/**
 * One assistant turn. `attempt` counts the executors that have claimed it.
 *
 * `waitsUntil` is set while a run waits for a remote worker: if none has claimed it by then, it fails. `error` says
 * why a run has failed; only `GET /runs/{id}` has it.
 */
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
  waitsUntil?: string;
  error?: RunFailure;
}

/**
 * The record of one model or tool call. `costUsd` is a decimal string, absent if unknown.
 *
 * `hash` (hex digits) covers this receipt and the `hash` of the previous one: see `khala.domain.receipts`.
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

/** A thread at one revision, with its newest messages in order, and its newest plans, the newest first. */
export interface Snapshot {
  revision: number;
  thread: Thread;
  messages: Message[];
  hasMore: boolean;
  reset?: boolean;
  plans?: PlanEntry[];
}

/**
 * The changes of a thread after revision `from`, up to and including `revision`.
 *
 * `plans` has all plans that have changed, `planSteps` the progress of their changed steps, and `planEvents` their
 * new events. `planSteps` and `planEvents` are null where there are too many: then they are to be read over REST.
 */
export interface Delta {
  from: number;
  revision: number;
  thread?: Thread;
  messages: Message[];
  parts: Part[];
  plans?: PlanEntry[];
  planSteps?: StepProgress[] | null;
  planEvents?: PlanEventEntry[] | null;
}

/** A memory that the model was told. `score` is from 0 to 1. Of a long text, it has the beginning. */
export interface RecalledMemory {
  id: string;
  text: string;
  score: number;
}

/** An agent, and the probability that it is the right one for a task. */
export interface LikelyAgent {
  agent: string;
  confidence: number;
}

/** A token that the model considered, and the natural logarithm of its probability. */
export interface LikelyToken {
  token: string;
  logprob: number;
}

/** A token of the answer, and the most likely tokens at its place. `bytes` are those of its UTF-8, if known. */
export interface TokenLogprob {
  token: string;
  logprob: number;
  bytes?: number[];
  top?: LikelyToken[];
}

/** An attempt of a step of a plan. Attempts of a step are numbered from 1. */
export interface StepRef {
  planId: string;
  stepId: string;
  attempt: number;
}

/**
 * A plan without its steps.
 *
 * `reason`: why it pauses or has stopped. `agent` does the next steps; `agentReason` says why it is not the primary
 * one. `iteration` counts the attempts of all steps. `eventSeq` is the number of the last event, and `editedRevision`
 * the thread's revision of the last change of what the steps are.
 */
export interface PlanEntry {
  id: string;
  threadId: string;
  title: string;
  mode: "all" | "step" | "autopilot";
  status: "idle" | "running" | "pausing" | "paused" | "stopping" | "stopped";
  reason?: "requested" | "review" | "step_failed" | "no_progress" | "all_limited" | "budget" | "access" | "completed" | "max_iterations" | "no_tasks" | "error" | "interrupted";
  agent: string;
  agentReason?: string;
  iteration: number;
  maxIterations: number;
  counts: PlanCounts;
  spent: PlanSpent;
  budget: PlanBudget;
  eventSeq: number;
  revision: number;
  editedRevision: number;
  createdAt: string;
  updatedAt: string;
}

/** The progress of a step, in the feed. `runId` is the run of the last attempt; texts are cut. */
export interface StepProgress {
  planId: string;
  id: string;
  status: "open" | "running" | "completed" | "failed" | "skipped" | "cancelled";
  attempts: number;
  agent?: string;
  runId?: string;
  startedAt?: string;
  notBefore?: string;
  summary?: string;
  error?: string;
}

/** An event of a plan. `data` has the fields of the event; in the feed, without steps and long texts. */
export interface PlanEventEntry {
  planId: string;
  seq: number;
  type: string;
  stepId?: string;
  at: string;
  data: Record<string, unknown>;
}

/** The steps by status, each once. `blocked` ones are not in `open`: they depend on a step that can't complete. */
export interface PlanCounts {
  open: number;
  running: number;
  completed: number;
  failed: number;
  skipped: number;
  cancelled: number;
  blocked: number;
}

/** The cost of attempts. `usd` is a decimal string on the wire. */
export interface PlanSpent {
  usd?: string;
  tokens?: number;
  seconds?: number;
}

/** The most that a plan may spend. null: no limit. `usd` is a decimal string on the wire. */
export interface PlanBudget {
  usd?: string;
  tokens?: number;
  seconds?: number;
}

/**
 * Commits the work of each completed step that a command agent does in a Git checkout.
 *
 * A step fails if the checkout has changes that are not committed, unless `allowDirty`.
 */
export interface PlanGit {
  allowDirty?: boolean;
}

/**
 * The rules of a plan. `agents` has the primary agent first, then its fallbacks in order.
 *
 * `noProgress`: attempts in a row that may end without completing their step. `rateLimitRetries`: attempts of a
 * step with the same agent after a rate limit, before the next agent is tried. `git` commits the work of steps.
 */
export interface PlanConfig {
  agents: string[];
  strategy?: "retry" | "skip" | "abort";
  maxRetries?: number;
  retryBaseMs?: number;
  rateLimitRetries?: number;
  stepDelayMs?: number;
  stepTimeoutSeconds?: number;
  parallel?: number;
  noProgress?: number;
  recoverPrimary?: boolean;
  budget?: PlanBudget;
  git?: PlanGit;
}

/** A step as it was planned. Steps with a lower `priority` run first. `agent` replaces the plan's agent. */
export interface PlannedStep {
  id: string;
  title: string;
  instructions?: string;
  acceptance?: string[];
  dependsOn?: string[];
  priority?: number;
  phase?: string;
  agent?: string;
}

/** A plan with its goal and its rules. */
export interface PlanDetail {
  id: string;
  threadId: string;
  title: string;
  mode: "all" | "step" | "autopilot";
  status: "idle" | "running" | "pausing" | "paused" | "stopping" | "stopped";
  reason?: "requested" | "review" | "step_failed" | "no_progress" | "all_limited" | "budget" | "access" | "completed" | "max_iterations" | "no_tasks" | "error" | "interrupted";
  agent: string;
  agentReason?: string;
  iteration: number;
  maxIterations: number;
  counts: PlanCounts;
  spent: PlanSpent;
  budget: PlanBudget;
  eventSeq: number;
  revision: number;
  editedRevision: number;
  createdAt: string;
  updatedAt: string;
  goal: string;
  config: PlanConfig;
}

/** A step as it was planned, and its progress with whole texts. `blocked`: it can't run, because of another step. */
export interface StepDetail {
  planId: string;
  id: string;
  status: "open" | "running" | "completed" | "failed" | "skipped" | "cancelled";
  attempts: number;
  agent?: string;
  runId?: string;
  startedAt?: string;
  notBefore?: string;
  summary?: string;
  error?: string;
  planned: PlannedStep;
  blocked?: boolean;
}

// Content

/** Consecutive text. */
export interface TextBlock {
  type: "text";
  text: string;
}

/** A notice at its place in the content, so that late readers see the same as live ones. */
export interface NoticeBlock {
  type: "notice";
  code: string;
  message: string;
  until?: string;
}

/** A tool call and its state: queued, running, completed, failed, blocked or cancelled. */
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

/** A summary that replaces older turns for the model. People still see the turns. */
export interface CompactionBlock {
  type: "compaction";
  summary: string;
  messageId?: string;
  step?: number;
}

/** A file that is attached to a message. */
export interface FileBlock {
  type: "file";
  blob: BlobRef;
}

/** Data of an appended message, for clients: models do not get it, and the search does not find it. */
export interface DataBlock {
  type: "data";
  name: string;
  data: unknown;
}

export type Block = TextBlock | NoticeBlock | ToolBlock | CompactionBlock | FileBlock | DataBlock;

// Parts

/** Text to append to the answer. */
export interface TextDelta {
  text: string;
}

/** Text of the model's reasoning. It is stored only if the operator enables that, and is no part of the content. */
export interface ReasoningDelta {
  text: string;
}

/** The probabilities of the next tokens of the reply that has just ended. They are no part of the content. */
export interface Logprobs {
  tokens: TokenLogprob[];
}

/** The model calls a tool. Large arguments are in a blob. */
export interface ToolCall {
  toolCallId: string;
  step: number;
  tool: string;
  args?: Record<string, unknown>;
  argsBlob?: BlobRef;
}

/**
 * A tool call changes its state: queued, running, blocked or cancelled.
 *
 * A blocked call waits until `expiresAt` for the approval of exactly the call with this `digest`. The approver may
 * have replaced the arguments by `args`.
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

/** A tool call ends. `summary` is one line of at most 120 characters. A large output is in a blob. */
export interface ToolResult {
  toolCallId: string;
  ok: boolean;
  summary: string;
  durationMs: number;
  output?: unknown;
  blob?: BlobRef;
}

/** A step begins. `usage` and `costUsd` are the run's totals so far. */
export interface Step {
  step: number;
  maxSteps: number;
  toolCount: number;
  usage?: Usage;
  costUsd?: string;
}

/** A notice for readers: a model was switched, a call retried, or a run resumed. */
export interface Notice {
  code: string;
  message: string;
  until?: string;
}

/**
 * Older turns were summarised to fit the model's context.
 *
 * For the model, the summary replaces all messages up to `messageId`, and the answer's own steps up to `step`.
 */
export interface Compaction {
  summary: string;
  messageId?: string;
  step?: number;
}

/** The memories that fit the question, the best first. They are no part of the content. */
export interface MemoryRecall {
  memories: RecalledMemory[];
}

/**
 * The agent that the server chose for the run, `default` if it chose none. It is no part of the content.
 *
 * `confidence` is the probability that the choice is right. Of the alternatives, a part names only built-in agents.
 * `by`: whether the meaning of the task counted, or only its words. Parts of earlier versions do not say it.
 */
export interface Route {
  agent: string;
  confidence: number;
  alternatives: LikelyAgent[];
  why: string;
  by?: "words" | "meaning";
}

/**
 * The error of a failed run. A `finish` with reason `error` follows in the same commit.
 *
 * `cause`: why a provider `refused` a request, as far as that is known. `retryAfter`: the
 * seconds that a provider or a command asked to wait.
 */
export interface RunFailure {
  code: string;
  message: string;
  cause?: string;
  retryAfter?: number;
}

/** One part, as stored and on the wire. `data` stays encoded until it is needed. */
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
  | PartOf<"logprobs", Logprobs>
  | PartOf<"tool-call", ToolCall>
  | PartOf<"tool-status", ToolStatus>
  | PartOf<"tool-result", ToolResult>
  | PartOf<"step", Step>
  | PartOf<"notice", Notice>
  | PartOf<"compaction", Compaction>
  | PartOf<"memory", MemoryRecall>
  | PartOf<"route", Route>
  | PartOf<"error", RunFailure>
  | PartOf<"finish", Finish>;

// Frames of clients

/** Follow a thread, after a revision or from a snapshot on. */
export interface Subscribe {
  type: "subscribe";
  threadId: string;
  after?: number;
  anonKey?: string;
  shareKey?: string;
}

/** Stop following a thread. */
export interface Unsubscribe {
  type: "unsubscribe";
  threadId: string;
}

/** Set the client's presence in a thread that it follows. A null `state` ends the presence. */
export interface SetPresence {
  type: "presence";
  threadId: string;
  state: Record<string, unknown> | null;
}

/** Follow the account's thread list, after a revision or from a snapshot on. */
export interface Watch {
  type: "watch";
  after?: number;
}

/** Stop following the account's thread list. */
export interface Unwatch {
  type: "unwatch";
}

/** Authenticate as an account, for all later frames. */
export interface Authenticate {
  type: "authenticate";
  token: string;
}

/** Requests a pong. */
export interface Ping {
  type: "ping";
}

export type ClientFrame = Subscribe | Unsubscribe | SetPresence | Watch | Unwatch | Authenticate | Ping;

// Frames of servers

/** A present client. Only `state` comes from the client itself. */
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

/** A thread's current state: the first frame of a subscription without `after`, or if `after` cannot be served. */
export interface SnapshotFrame {
  type: "snapshot";
  revision: number;
  thread: Thread;
  messages: Message[];
  hasMore: boolean;
  reset?: boolean;
  plans?: PlanEntry[];
  threadId: string;
}

/** The changes since the previous frame, whose revision is `from`. */
export interface DeltaFrame {
  type: "delta";
  from: number;
  revision: number;
  thread?: Thread;
  messages: Message[];
  parts: Part[];
  plans?: PlanEntry[];
  planSteps?: StepProgress[] | null;
  planEvents?: PlanEventEntry[] | null;
  threadId: string;
}

/** The end of a subscription: the thread is gone, or the client has lost access. */
export interface Gone {
  type: "gone";
  threadId: string;
  code: string;
}

/** The clients present in a thread, the latest changes first. `more` counts those left out. */
export interface Present {
  type: "presence";
  threadId: string;
  participants: Participant[];
  more?: number;
}

/** The newest entries of an account's thread list: the first frame of a watch, like a snapshot. */
export interface AccountFrame {
  type: "account";
  revision: number;
  whole: true;
  threads: ThreadListEntry[];
  hasMore: boolean;
  invitations?: Invitation[];
}

/**
 * The changes of an account's thread list since the previous frame, whose revision is `from`.
 *
 * `invitations` has all open invitations, if any has changed.
 */
export interface AccountDelta {
  type: "account";
  from: number;
  revision: number;
  threads: ThreadListEntry[];
  removed: string[];
  invitations?: Invitation[];
}

/** The account of the connection from now on, or the thread that a thread token opens. */
export interface Authenticated {
  type: "authenticated";
  userId?: string;
  threadId?: string;
}

/**
 * A frame of the client, or a subscription, failed. `path` locates the error in the client's frame.
 *
 * If a limit has refused the frame, the last four fields name it, as in a problem with status 429.
 */
export interface ErrorFrame {
  type: "error";
  threadId?: string;
  code: string;
  message: string;
  path?: string;
  limit?: string;
  scope?: "account" | "key" | "credential" | "network" | "thread" | "stream" | "connection" | "run" | "deployment";
  most?: string;
  retryAfter?: number;
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
 * A tool that the client executes: a run that calls it ends with reason `toolCalls`.
 *
 * `parameters` is the JSON Schema of an object; `{}` means an object without fields. With `strict`, providers that can
 * do so let the model write only arguments that fit it.
 */
export interface FunctionTool {
  name: string;
  description?: string;
  parameters?: Record<string, unknown>;
  strict?: boolean;
}

/** A memory to store. `scope` is `thread` if there is a `threadId`, else `user`. `agent` belongs to its scope. */
export interface NewMemory {
  text: string;
  scope?: "user" | "thread" | "agent";
  threadId?: string;
  agent?: string;
  kind?: "fact" | "preference" | "instruction" | "summary";
  keywords?: string;
  expiresAt?: string;
}

/** The limits of one run, unless the operator's are lower. Send `usd` as a string to keep it exact. */
export interface RunBudget {
  usd?: string;
  tokens?: number;
  seconds?: number;
  toolCalls?: number;
}

/**
 * The format of an answer. `jsonObject` is any JSON object, `jsonSchema` any JSON value that fits `schema`.
 *
 * `name` and `description` tell the model what the value is. With `strict`, providers that can do so let the model
 * write nothing else; some accept only a part of JSON Schema then.
 */
export interface ResponseFormat {
  type: "text" | "json_object" | "json_schema";
  name?: string;
  description?: string;
  schema?: Record<string, unknown>;
  strict?: boolean;
}

/**
 * The tools that the model may or must call. With `tools`, only those of these names are offered.
 *
 * With `required`, the first reply has to call one. Later replies of the run may, as with `auto`.
 */
export interface ToolChoice {
  mode: "auto" | "none" | "required";
  tools?: string[];
}

/**
 * The options of a run. `model` is `provider:name`; `ifBusy` decides what happens while another run is active.
 *
 * With `autopilot` the run takes up to `maxSteps` steps until it has an answer; without, it takes one step. `tools`
 * are patterns of the tools to offer, by default all. Each reply of the model has at most `maxOutputTokens`.
 * `instructions` are added to the model's instructions for this run. A prompt has at most `contextTokens`, if the
 * operator's limit is not lower. `maxSteps` is limited to 1 to 50, and invalid values count as 20. `agent` is the
 * name of an agent, or `auto` to leave the choice to the server. Without `serverInstructions`, the prompt has none of
 * the operator. With `personal`, the run uses the instructions and the model that its requester
 * prefers. `contextOverflow` decides about a conversation that is too long for a prompt: its older messages are
 * left out, or summarised on autopilot, or the run ends with an error.
 */
export interface RunOptions {
  responseFormat?: ResponseFormat;
  toolChoice?: ToolChoice;
  parallelToolCalls?: boolean;
  temperature?: number;
  topP?: number;
  seed?: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  stop?: string[];
  reasoningEffort?: "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max";
  logprobs?: boolean;
  topLogprobs?: number;
  user?: string;
  metadata?: Record<string, string>;
  agent?: string;
  model?: string;
  ifBusy?: "reject" | "queue" | "interrupt";
  budget?: RunBudget;
  autopilot?: boolean;
  maxSteps?: number;
  tools?: string[];
  functions?: FunctionTool[];
  maxOutputTokens?: number;
  contextTokens?: number;
  instructions?: string;
  serverInstructions?: boolean;
  personal?: boolean;
  contextOverflow?: "shorten" | "error";
}

/**
 * A thread to create. If the client generates the id and the key, it can safely repeat the request.
 *
 * A `temporary` thread is on no list, uses and leaves no memories, and is deleted a day after its creation.
 */
export interface NewThread {
  id?: string;
  anonKey?: string;
  title?: string;
  temporary?: boolean;
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
  authorName?: string;
  options?: RunOptions;
  sendAt?: string;
  after?: number;
}

/**
 * Messages to add without an answer, in order, each after the previous one.
 *
 * The first follows `parentId`, by default the last message of the active branch; null for no message. While an answer
 * is being written, the messages follow it (`queue`), interrupt it, or are refused.
 */
export interface AppendRequest {
  messages: AppendedMessage[];
  parentId?: string | null;
  ifBusy?: "reject" | "queue" | "interrupt";
}

/**
 * A message to add. If the client generates `id`, it can safely repeat the request.
 *
 * `author` is the name that clients show, for example that of a bot. The caller is the author in any case.
 */
export interface AppendedMessage {
  id?: string;
  role: MessageRole;
  parts: (AppendedText | AppendedFile | AppendedData)[];
  author?: string;
}

/** Text of an appended message. */
export interface AppendedText {
  type: "text";
  text: string;
}

/** An upload of the thread that belongs to no message yet. */
export interface AppendedFile {
  type: "file";
  blobId: string;
}

/** Data for clients, of at most 16 KiB as JSON. Models do not get it. */
export interface AppendedData {
  type: "data";
  name: string;
  data: unknown;
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
 * `digest` names the version of the call that the user saw. `editedArgs` replace the arguments of the call. `allow`
 * says whether an approval also applies to later calls of the tool: in the run, or in the thread.
 */
export interface DecisionRequest {
  approved: boolean;
  reason?: string;
  editedArgs?: Record<string, unknown>;
  digest?: string;
  allow?: "once" | "run" | "thread";
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

/** A thread token to create. It expires after `expiresIn` seconds. */
export interface NewThreadToken {
  role: "viewer" | "editor";
  expiresIn?: number;
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

/**
 * An API token to create.
 *
 * A worker's token has the scope `execute` alone, and `agents`: the remote agents whose runs it may execute.
 */
export interface NewToken {
  name: string;
  scopes?: Scope[];
  agents?: string[];
  expiresAt?: string;
}

/** `returnTo`: the path on this server to which the browser comes back. */
export interface NewConnection {
  returnTo?: string;
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

/** A repository to load: the address of its page, by default of its default branch, into a folder. */
export interface NewRepository {
  url: string;
  ref?: string;
  path?: string;
  into?: string;
}

/**
 * An agent to create. Without `tools`, its runs are offered all. `auto` and `default` are reserved names.
 *
 * With `executor: remote`, only remote workers execute its runs.
 */
export interface NewAgent {
  name: string;
  title: string;
  description?: string;
  instructions?: string;
  tools?: string[];
  model?: string;
  fallbacks?: string[];
  examples?: string[];
  budget?: RunBudget;
  executor?: "server" | "remote";
}

/** Changes of an agent. Fields that are absent stay as they are. */
export interface AgentChanges {
  title?: string;
  description?: string;
  instructions?: string;
  tools?: string[];
  model?: string | null;
  fallbacks?: string[];
  examples?: string[];
  budget?: RunBudget | null;
  executor?: "server" | "remote";
}

/** A task, and the thread to which it would be sent. */
export interface RouteRequest {
  text: string;
  threadId?: string;
}

/** Changes of a memory. Fields that are absent stay as they are. */
export interface MemoryChanges {
  text?: string;
  expiresAt?: string | null;
}

/** Changes of the memory settings. Fields that are absent stay as they are. */
export interface MemorySettingsBody {
  recall?: boolean;
  extraction?: "off" | "ask" | "on";
}

/** The memory settings of a thread. */
export interface ThreadMemoryBody {
  personal: boolean;
}

/**
 * Rules of a plan. `agents` has the primary agent first, then its fallbacks in order.
 *
 * `noProgress`: attempts in a row that may end without completing their step. `rateLimitRetries`: attempts of a
 * step with the same agent after a rate limit, before the next agent is tried. `git` commits the work of steps.
 */
export interface PlanConfigChanges {
  agents?: string[];
  strategy?: "retry" | "skip" | "abort";
  maxRetries?: number;
  retryBaseMs?: number;
  rateLimitRetries?: number;
  stepDelayMs?: number;
  stepTimeoutSeconds?: number;
  parallel?: number;
  noProgress?: number;
  recoverPrimary?: boolean;
  budget?: PlanBudget;
  git?: PlanGit | null;
}

/**
 * A plan to create, which is idle. If the client generates `planId`, it can safely repeat the request.
 *
 * Without `config.agents`, the agent `default` executes the steps. Without `maxIterations`, each step can be retried
 * as often as the rules allow.
 */
export interface NewPlan {
  planId?: string;
  title: string;
  goal?: string;
  mode?: "all" | "step" | "autopilot";
  maxIterations?: number;
  config?: PlanConfigChanges;
  steps: PlannedStep[];
}

/**
 * A document of which a plan is created: a Markdown checklist, or the `prd.json` of ralph-tui.
 *
 * `title` replaces that of the document. The steps that the document says are done are not executed.
 */
export interface ImportedPlan {
  planId?: string;
  format: "markdown" | "prd";
  document: string;
  title?: string;
  mode?: "all" | "step" | "autopilot";
  maxIterations?: number;
  config?: PlanConfigChanges;
}

/**
 * A goal of which a model makes a plan. If the client generates `planId`, it can safely repeat the request.
 *
 * `title`, `mode`, `maxIterations` and the rules in `config` replace what the model chooses. `options` are those of
 * the model's run: its agent, its model, its budget and so on.
 */
export interface NewPlanDraft {
  planId?: string;
  goal: string;
  title?: string;
  mode?: "all" | "step" | "autopilot";
  maxIterations?: number;
  config?: PlanConfigChanges;
  options?: RunOptions;
}

/**
 * A message to send, or a plan to start, at a time (`at`) or by a cron expression of five fields (`cron`).
 *
 * Without `threadId`, each message has a thread of its own, with `name` as its title. A plan is started at one time.
 * If the client generates `id`, it can safely repeat the request.
 */
export interface NewSchedule {
  id?: string;
  name?: string;
  threadId?: string;
  planId?: string;
  text?: string;
  options?: RunOptions;
  at?: string;
  cron?: string;
  timeZone?: string;
  missed?: "skip" | "once" | "all";
  endsAt?: string;
}

/**
 * Changes of a schedule. Fields that are absent stay as they are. `cron` replaces `at`, and the other way round.
 *
 * `options` replaces all options of before. `agent` replaces the agent alone, and null removes it.
 */
export interface ScheduleEdit {
  name?: string | null;
  text?: string;
  options?: RunOptions;
  agent?: string | null;
  at?: string;
  cron?: string;
  timeZone?: string;
  missed?: "skip" | "once" | "all";
  endsAt?: string | null;
  paused?: boolean;
}

/** If the client generates `messageId`, it can safely repeat the request. */
export interface FireRequest {
  messageId?: string;
}

/** How to pause. With `force`, the steps under way are canceled, and opened again. */
export interface PauseRequest {
  force?: boolean;
}

/**
 * Changes of a plan. Fields that are absent stay as they are. `agent` is one of the plan's agents.
 *
 * `budget` replaces the whole budget; `config` has the rules to change.
 */
export interface PlanDetailChanges {
  title?: string;
  goal?: string;
  mode?: "all" | "step" | "autopilot";
  budget?: PlanBudget;
  agent?: string;
  config?: PlanConfigChanges;
}

/**
 * How many more iterations a plan may make, or fewer if `by` is negative.
 *
 * With `ifMaxIterations`, the request can safely be repeated: it is the number to which `by` is added.
 */
export interface IterationsChange {
  by: number;
  ifMaxIterations?: number;
}

/**
 * Changes of the steps. `change` has whole steps, which replace those with the same ids.
 *
 * `order` has the ids of all steps after the edit. With `ifEventSeq`, the edit fails if somebody has edited the plan
 * after that event.
 */
export interface PlanEdit {
  add?: PlannedStep[];
  remove?: string[];
  change?: PlannedStep[];
  order?: string[];
  ifEventSeq?: number;
}

/** A webhook to create. Without `events`, it gets all. With `includeContent`, events have the text of messages. */
export interface NewWebhook {
  url: string;
  description?: string;
  events?: ("run.started" | "run.finished" | "run.failed" | "run.cancelled" | "approval.requested" | "approval.decided" | "thread.created" | "thread.claimed" | "thread.deleted" | "message.created" | "plan.stopped" | "budget.exhausted")[];
  includeContent?: boolean;
}

/** Changes of a webhook. Fields that are absent stay as they are. */
export interface WebhookChanges {
  url?: string;
  description?: string;
  events?: ("run.started" | "run.finished" | "run.failed" | "run.cancelled" | "approval.requested" | "approval.decided" | "thread.created" | "thread.claimed" | "thread.deleted" | "message.created" | "plan.stopped" | "budget.exhausted")[];
  includeContent?: boolean;
  enabled?: boolean;
}

/** A rotation of the secret. The previous one signs, too, for `overlapSeconds`. */
export interface SecretRotation {
  overlapSeconds?: number;
}

/**
 * The events to deliver again: those since `since`, or those of a thread after a revision, or both.
 *
 * `after` is the `next` of a replay before, which this one continues.
 */
export interface NewReplay {
  since?: string;
  threadId?: string;
  afterRevision?: number;
  after?: string;
  limit?: number;
}

// What answers carry

/** The result of a send. A retry of the same send has the same result. */
export interface SendResult {
  threadId: string;
  userMessageId: string;
  assistantMessageId: string;
  runId: string;
  revision: number;
}

/** The result of an append: the ids of its messages, in order. A retry of the same append has the same result. */
export interface AppendedMessages {
  threadId: string;
  messageIds: string[];
  revision: number;
}

/** The result of one of several claims: an error `code`, or none if the thread is now the caller's. */
export interface ClaimResult {
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

/** An API token, without its secret. `agents` are those whose runs a worker's token may execute. */
export interface Token {
  id: string;
  name: string;
  scopes: Scope[];
  agents?: string[];
  createdAt: string;
  usedAt?: string;
  expiresAt?: string;
}

/** The access of an MCP client to an account. `resource` is the MCP server that it may use. */
export interface ClientGrant {
  id: string;
  clientId: string;
  clientName: string;
  redirectHost: string;
  resource: string;
  scopes: ("khala:read" | "khala:write")[];
  createdAt: string;
  usedAt?: string;
  expiresAt: string;
}

/** One change. `detail` never contains a secret. */
export interface Trace {
  id: string;
  action: string;
  threadId?: string;
  network?: string;
  detail: Record<string, unknown>;
  createdAt: string;
}

/**
 * A line. `line` counts from 1, or in the mode `tail` from the end: -1 is the last line.
 *
 * `match`: the line matches the pattern. `cut`: `text` is only the start of the line, or the text around the match.
 */
export interface BlobLine {
  line: number;
  text: string;
  match?: boolean;
  cut?: boolean;
}

/**
 * Lines of a blob. To read on, repeat the request with `after` set to `next`. The last result has no `next`.
 *
 * If the time limit was reached, a result may have a `next` but no lines. `binary`: the blob is not text, and has no
 * lines.
 */
export interface ReadResult {
  items: BlobLine[];
  next?: string;
  binary?: boolean;
}

/**
 * The usage of a limit, as decimal strings: the amount that ended runs `used`, and the amount that active runs have
 * `reserved`. Both are reset to 0 at `endsAt`.
 */
export interface Used {
  scope: "run" | "thread" | "user" | "accounts" | "key" | "network" | "anonymous";
  measure: "usd" | "tokens" | "runs" | "seconds";
  used: string;
  reserved: string;
  most: string;
  endsAt?: string;
}

/** The treatment of calls to tools whose name matches the pattern (`*` and `?` as in shells). */
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
  title?: string;
  destructive?: boolean;
}

/**
 * A model, named as in `RunOptions.model`. Prices are decimal strings, and absent if they are unknown.
 *
 * `title` is what people read instead of `name`, and `description` what the model is good for, in one line; both are
 * absent unless the operator has set them.
 */
export interface Model {
  model: string;
  provider: string;
  name: string;
  title?: string;
  description?: string;
  inputUsdPerMillion?: string;
  outputUsdPerMillion?: string;
  contextTokens?: number;
}

/**
 * The models that a request may name, and the default model.
 *
 * `embeddings` is the embedding model. Without one, searches are by words. `titles` says that a model writes titles of
 * threads that have none.
 */
export interface Models {
  default: string;
  items: Model[];
  embeddings?: string;
  titles?: boolean;
}

/** The thread, the key of an anonymous one, and the end of one that expires. The key is returned only once. */
export interface CreatedThread {
  thread: Thread;
  anonKey?: string;
  expiresAt?: string;
}

/** A call that waits for a decision, and the decision, if there is one. */
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
  allow?: "once" | "run" | "thread";
  mayEdit?: boolean;
}

/** The caller's role in a thread, and when it expires, if it does. */
export interface ThreadAccess {
  role: Role;
  expiresAt?: string;
}

/** A user with a role in a thread. A user who is `invited` may only read until they accept the role. */
export interface Member {
  userId: string;
  name?: string;
  role: Role;
  status: "member" | "invited";
}

/** A role in a thread that the account may accept or decline. `invitedBy` is the sender's current name. */
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

/** An identity at an OpenID Provider by which a user can sign in to an account. */
export interface LinkedIdentity {
  issuer: string;
  email?: string;
}

/** An account. `password` tells whether the user can sign in with a password. */
export interface User {
  id: string;
  name?: string;
  email?: string;
  password: boolean;
  identities: LinkedIdentity[];
  createdAt: string;
  admin?: boolean;
}

/** A thread token, without its secret. It gives whoever has it this role in one thread, until it expires. */
export interface ThreadToken {
  id: string;
  role: Role;
  createdAt: string;
  expiresAt: string;
}

/** A thread token and its secret, which is returned only once. */
export interface CreatedThreadToken {
  id: string;
  role: Role;
  createdAt: string;
  expiresAt: string;
  token: string;
}

/** The account, and the result of each claim. */
export interface SignedInUser {
  id: string;
  name?: string;
  email?: string;
  password: boolean;
  identities: LinkedIdentity[];
  createdAt: string;
  admin?: boolean;
  claimed: ClaimResult[];
}

/** The session has ended. To end the session at the OpenID Provider too, go to `endSessionUrl`. */
export interface SignedOut {
  endSessionUrl?: string;
}

/** A signed-in browser. `current` marks the one that made the request. */
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
  agents?: string[];
  createdAt: string;
  usedAt?: string;
  expiresAt?: string;
  token: string;
}

/** An OpenID Provider that users can sign in with. `name` is for display. */
export interface SignInProvider {
  name: string;
}

/**
 * The ways to sign in to this server, and what it allows.
 *
 * `publicThreads` says whether threads can be open to everybody, `undoSeconds` how long a deletion can be undone.
 */
export interface SignInMethods {
  registration: boolean;
  oidc: SignInProvider | null;
  publicThreads: boolean;
  undoSeconds: number;
}

/** A tool as its user sees it. `digest` identifies its definition and code: SHA-256, as hex digits. */
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

/**
 * A memory that the model was told: the text then, cut if it is long, and the memory now.
 *
 * `memory` is absent if it was forgotten, or if it is not the caller's. If it was corrected, it is the newest version.
 */
export interface UsedMemory {
  id: string;
  text: string;
  score: number;
  memory?: Memory;
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

/**
 * One place in a run, as the cursor of each protocol.
 *
 * `position` is the number of parts before it. `revision` is the `after` of the thread's feed, `offset` the offset in
 * the thread's stream, `eventId` the last event of AG-UI, and `sequenceNumber` that of the Responses API. `done`: the
 * run has ended, and nothing follows.
 */
export interface RunCursor {
  threadId: string;
  runId: string;
  position: number;
  revision: number;
  offset: string;
  eventId: string;
  sequenceNumber: number;
  done: boolean;
}

/** How many files were not loaded for one reason, with some of their names. */
export interface SkippedFiles {
  reason: "symlink" | "hard_link" | "device" | "encrypted" | "unsupported" | "unsafe_path" | "path_not_utf8" | "path_too_long" | "git_data" | "system_file" | "duplicate_path" | "too_large" | "binary";
  count: number;
  examples: string[];
}

/** A loaded folder. `files` and `bytes` count what was loaded, without the file that names the source. */
export interface LoadedRepository {
  folder: string;
  source: string;
  ref?: string;
  commit?: string;
  files: number;
  bytes: number;
  skipped?: SkippedFiles[];
}

/** How far a load is: the bytes that are downloaded, or the files that are read or are being stored. */
export interface RepositoryProgress {
  type: "progress";
  stage: "downloading" | "reading" | "storing";
  bytes?: number;
  files?: number;
}

/** The repository is in the workspace. */
export interface RepositoryLoaded {
  type: "loaded";
  repository: LoadedRepository;
}

/** The repository could not be loaded, and the workspace is unchanged. */
export interface RepositoryFailed {
  type: "failed";
  code: string;
  message: string;
  retryAfterSeconds?: number;
}

/**
 * Something that is not in a prompt, or not as a whole.
 *
 * `what` refers to it, without its text: `message:ID`, `step:NUMBER`, `blob:ID`, `memory:ID`, `tools` or `summary`.
 * An entry with a `count` stands for so many items, and `what` is the most important of them, which is the newest of
 * messages and steps. `tokens` is the approximate number of missing tokens. `by` says of unrelated tools whether only
 * their words were compared with the conversation, or also their meaning.
 */
export interface LeftOut {
  what: string;
  tokens: number;
  why: "limit" | "share" | "shortened" | "summarised" | "unrelated" | "unread";
  count?: number;
  by?: "words" | "meaning";
}

/** A section of a prompt: the number of its tokens and items, and what was left out. */
export interface ContextSection {
  name: "instructions" | "folderFiles" | "memories" | "summary" | "turns" | "files" | "tools";
  tokens: number;
  items: number;
  leftOut: LeftOut[];
}

/**
 * One model call of a run: what it was told, its outcome, and the input tokens that its provider counted.
 *
 * `model` is `provider:name`. `inputTokens` is absent if the provider did not report them.
 */
export interface ContextCall {
  at: string;
  purpose: "answer" | "summary";
  limit: number;
  estimated?: boolean;
  sections: ContextSection[];
  model: string;
  outcome: string;
  inputTokens?: number;
}

/** The contexts of a run's model calls, in order. */
export interface RunContext {
  calls: ContextCall[];
}

/** The current version of an agent. An agent without an owner is built in. */
export interface Agent {
  title: string;
  description: string;
  instructions: string;
  tools: string[];
  model?: string;
  fallbacks?: string[];
  examples: string[];
  budget?: RunBudget;
  executor?: "server" | "remote";
  name: string;
  version: number;
  owner?: string;
  visibility: "private" | "link" | "public";
}

/** The link that shares an agent. Use it as `agent` in `RunOptions`, or to read the agent. */
export interface AgentLink {
  link: string;
}

/** The medians of `of` earlier runs. Without such runs, and without known costs, figures are absent. */
export interface RunEstimate {
  steps?: number;
  seconds?: number;
  usd?: string;
  of: number;
}

/**
 * The agent for a task, `default` if the router `abstained`, and an estimate of its run.
 *
 * `confidence` is the probability that the choice is right. `alternatives` are other agents, the most likely first.
 * `by`: whether the meaning of the task counted, or only its words.
 */
export interface RoutePreview {
  agent: string;
  confidence: number;
  abstained: boolean;
  why: string;
  by: "words" | "meaning";
  alternatives: LikelyAgent[];
  estimate: RunEstimate;
}

/**
 * A memory, its origin, and its use.
 *
 * `score` is present in search results: from 0 to 1, and comparable within one result. A memory with `supersededBy` is
 * no longer used; the newer one has the same subject.
 */
export interface Memory {
  id: string;
  scope: "user" | "thread" | "agent";
  kind: "fact" | "preference" | "instruction" | "summary";
  text: string;
  keywords?: string;
  agent?: string;
  threadId?: string;
  messageId?: string;
  runId?: string;
  createdAt: string;
  usedAt?: string;
  uses: number;
  expiresAt?: string;
  supersedes?: string;
  supersededBy?: string;
  score?: number;
}

/**
 * The memory settings of an account, or of a guest's key.
 *
 * `recall`: memories that fit a question are told to the model before each run. `extraction`: whether memories are
 * extracted from the person's own messages after a run.
 */
export interface MemorySettings {
  recall: boolean;
  extraction: "off" | "ask" | "on";
}

/**
 * The memory settings of a thread.
 *
 * `personal`: runs of the owner use the owner's personal memories, although others can read the thread.
 */
export interface ThreadMemorySettings {
  personal: boolean;
}

/**
 * A memory that was extracted, until the person who said it accepts or rejects it.
 *
 * `supersedes` is the memory that it corrects.
 */
export interface MemoryProposal {
  id: string;
  scope: "user" | "thread" | "agent";
  kind: "fact" | "preference" | "instruction" | "summary";
  text: string;
  keywords?: string;
  threadId: string;
  messageId?: string;
  runId?: string;
  supersedes?: string;
  createdAt: string;
  expiresAt: string;
}

/**
 * The record of one call, or of several embeddings within seconds. `costUsd` as in `Receipt`.
 *
 * `threadId` and `runId` say what the call was made for.
 */
export interface UsageReceipt {
  id: string;
  purpose: "extraction" | "embedding" | "title";
  threadId?: string;
  runId?: string;
  data: Record<string, unknown>;
  costUsd?: string;
  createdAt: string;
}

/** A part of a text that matches: from `start` to before `end`, in UTF-16 code units. */
export interface Highlight {
  start: number;
  end: number;
}

/**
 * A message, file or memory that a search has found: the passage that matches best.
 *
 * It has a `messageId`, a `path` or a `memoryId`. With a `blobId`, the passage is from a file of the message, whose
 * `name` follows if it has one, or from a large input or output of its tools. `match` is `exact` if the text has each
 * word of the search. `by` is `meaning` if its words alone would not have found it. `score` is from 0 to 1.
 */
export interface SearchHit {
  threadId?: string;
  messageId?: string;
  blobId?: string;
  name?: string;
  memoryId?: string;
  path?: string;
  text: string;
  highlights: Highlight[];
  match: "exact" | "similar";
  by: "words" | "meaning";
  score: number;
  createdAt: string;
}

/**
 * A connected service and the state of the caller's account there.
 *
 * `expired`: the service refuses its token. `removed`: the operator no longer offers the service. `needsScope`: a
 * call needed more permissions.
 */
export interface AccountConnection {
  name: string;
  description: string;
  state: "connected" | "expired" | "disconnected" | "removed";
  tools: number;
  issuer: string | null;
  scopes: string[];
  needsScope: boolean;
  connectedAt: string | null;
  usedAt: string | null;
}

/** The address at the service's authorization server at which the person allows the access. Open it in a browser. */
export interface ConnectionStart {
  url: string;
}

/** A plan with its goal, its rules, and its steps in order. */
export interface PlanWithSteps {
  id: string;
  threadId: string;
  title: string;
  mode: "all" | "step" | "autopilot";
  status: "idle" | "running" | "pausing" | "paused" | "stopping" | "stopped";
  reason?: "requested" | "review" | "step_failed" | "no_progress" | "all_limited" | "budget" | "access" | "completed" | "max_iterations" | "no_tasks" | "error" | "interrupted";
  agent: string;
  agentReason?: string;
  iteration: number;
  maxIterations: number;
  counts: PlanCounts;
  spent: PlanSpent;
  budget: PlanBudget;
  eventSeq: number;
  revision: number;
  editedRevision: number;
  createdAt: string;
  updatedAt: string;
  goal: string;
  config: PlanConfig;
  steps: StepDetail[];
}

/** The run that makes a plan, and the plan when it is made. A run that has ended without a plan makes none. */
export interface PlanDraftState {
  planId: string;
  run: Run;
  plan?: PlanWithSteps;
}

/** Events of a plan, in order. Read on with `after=nextAfter` while there are more. */
export interface PlanEventPage {
  items: PlanEventEntry[];
  nextAfter: number;
  hasMore: boolean;
}

/** A thread that the import has added. */
export interface ImportedThread {
  id: string;
  title?: string;
}

/**
 * The numbers of what was added so far, of what was there before (`known`), and of what was left out, by kind.
 *
 * `threads` are the first ten threads that were added.
 */
export interface ImportCounts {
  conversations: number;
  known: number;
  messages: number;
  files: number;
  threads: ImportedThread[];
  leftOut: Record<string, number>;
}

/** The report so far. */
export interface ImportProgress {
  type: "progress";
  report: ImportCounts;
}

/** The whole export is imported. */
export interface ImportEnded {
  type: "imported";
  report: ImportCounts;
}

/** The import ended early. What the report counts stays imported, and a repetition goes on. */
export interface ImportFailed {
  type: "failed";
  code: string;
  message: string;
  report: ImportCounts;
}

/**
 * A message that is sent, or a plan that is started, at set times as its owner.
 *
 * Without `threadId`, each occurrence has a thread of its own. `nextAt` is absent unless the schedule is active.
 * `agent` and `model` are those of its options, if they name one.
 * `reason` says why it has paused or ended by itself, and `error` why the last attempt failed.
 */
export interface Schedule {
  id: string;
  name?: string;
  threadId?: string;
  planId?: string;
  text?: string;
  agent?: string;
  model?: string;
  at?: string;
  cron?: string;
  timeZone: string;
  missed: "skip" | "once" | "all";
  endsAt?: string;
  status: "active" | "paused" | "ended";
  reason?: string;
  nextAt?: string;
  lastAt?: string;
  lastThreadId?: string;
  lastRunId?: string;
  failures?: number;
  error?: string;
  createdAt: string;
  updatedAt: string;
}

/** The run in a thread, or the plan of a thread, that a schedule has started. */
export interface StartedBySchedule {
  threadId: string;
  runId?: string;
}

/** The next times, in UTC. */
export interface SchedulePreview {
  times: string[];
}

/** A webhook. `disabledReason` says why Khala has disabled it; `failingSince`, when the last success ended. */
export interface Webhook {
  id: string;
  url: string;
  description: string;
  events: string[];
  includeContent: boolean;
  enabled: boolean;
  disabledReason: string | null;
  failingSince: string | null;
  createdAt: string;
}

/** A webhook, and the secret that signs its events. The secret is returned only once. */
export interface CreatedWebhook {
  id: string;
  url: string;
  description: string;
  events: string[];
  includeContent: boolean;
  enabled: boolean;
  disabledReason: string | null;
  failingSince: string | null;
  createdAt: string;
  secret: string;
}

/** The outcome of a request. Without a response, `status` is null. `response` is the beginning of the body. */
export interface WebhookAttempt {
  delivered: boolean;
  status: number | null;
  error: string | null;
  durationMs: number;
  response: string;
}

/** An event for a webhook, and the outcome of the last attempt. `id` is the `webhook-id` of its requests. */
export interface WebhookDelivery {
  id: string;
  type: string;
  threadId: string;
  data: Record<string, unknown>;
  state: "pending" | "delivered" | "failed";
  attempts: number;
  status: number | null;
  error: string | null;
  durationMs: number | null;
  response: string | null;
  createdAt: string;
  attemptedAt: string | null;
  nextAttemptAt: string | null;
}

/** The number of events that will be delivered again. With `next`, there may be more. */
export interface Replay {
  replayed: number;
  next?: string;
}

/** The error of one value in the request. `path` is like `options.model`. */
export interface FieldError {
  path: string;
  message: string;
}

/**
 * An error. Programs use `code`, people read `detail`.
 *
 * With status 429, and 413 for bytes of streams, `limit` names the limit that refused the request, `scope` says what
 * it counts for, `most` is the most that it allows, and `retryAfter` the seconds of `Retry-After`. A worker goes on at
 * `expectedSeq`.
 */
export interface Problem {
  title: string;
  status: number;
  code: string;
  detail: string;
  errors?: FieldError[];
  limit?: string;
  scope?: "account" | "key" | "credential" | "network" | "thread" | "stream" | "connection" | "run" | "deployment";
  most?: string;
  retryAfter?: number;
  expectedSeq?: number;
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
