// What a worker and the server exchange, and the errors of a worker.

/** A value of JSON. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** The arguments of a call. */
export type Args = Record<string, Json>;

/** A part to append. */
export interface WorkerPart {
  kind: string;
  data: Record<string, unknown>;
}

/** A block of a message. */
export interface WorkerBlock {
  type: string;
  text?: string;
  toolCallId?: string;
  state?: string;
  summary?: string;
  output?: Json;
  blob?: RunBlob;
}

/** A reference to a blob: a file of a message, or a large output of a run. `size` is bytes, `sha256` hex digits. */
export interface RunBlob {
  readonly blobId: string;
  readonly size: number;
  readonly sha256: string;
  readonly mediaType: string;
  readonly preview?: string;
  readonly name?: string;
}

/** The decision of a person about a call. */
export interface DecidedApproval {
  readonly toolCallId: string;
  readonly state: "approved" | "denied" | "expired";
  readonly reason?: string;
  readonly editedArgs?: Args;
}

/** A message of the thread. */
export interface WorkerMessage {
  readonly id: string;
  readonly role: string;
  readonly content?: readonly WorkerBlock[];
}

/** A run that the worker has claimed. */
export interface ClaimedRun {
  runId: string;
  threadId: string;
  agent: { name: string; version: number; instructions?: string };
  options: Record<string, unknown>;
  messages: WorkerMessage[];
  epoch: number;
  leaseSeconds: number;
  nextSeq: number;
  nextReceipt?: number;
  receiptsOutsideCalls?: number;
  content: WorkerBlock[];
  approvals: DecidedApproval[];
  takenOver: boolean;
  cancelled: boolean;
}

/** The state of a run, in the answer to a heartbeat. */
export interface ClaimedRunState {
  runId: string;
  epoch: number;
  held: boolean;
  cancelled: boolean;
  approvals: DecidedApproval[];
}

/** An error that the server answered. `code` is stable. */
export class WorkerRequestError extends Error {
  constructor(
    message: string,
    readonly code: string,
    readonly status: number,
  ) {
    super(message);
  }

  /** Whether the same request may succeed a little later. */
  get isTransient(): boolean {
    return this.status === 0 || this.status === 408 || this.status >= 500 || this.code === "rate_limited";
  }
}

/** An agent throws it to end its run with this message, which people see. */
export class AgentError extends Error {
  constructor(
    message: string,
    readonly code = "failed",
  ) {
    super(message);
  }
}

/** A person has denied the call, or nobody has approved it in time. */
export class ApprovalDenied extends AgentError {}

/** The run was given back: the function is run again later. Functions must not catch it. */
export class Released extends Error {}

/** A running step, with which it reports its own model calls: they are reported again only if it is run again. */
export interface RunningStep {
  usage(usage: ModelUsage): void;
}

export type StepFunction<T> = (step: RunningStep) => Promise<T> | T;

/** The usage of one model call. Without `costUsd` (a decimal string), the server uses its price list. */
export interface ModelUsage {
  inputTokens?: number;
  outputTokens?: number;
  provider?: string;
  model?: string;
  costUsd?: string;
  milliseconds?: number;
}
