// A session: one thread of a Khala server behind a message protocol, which PROTOCOL.md specifies.

import { EMPTY_THREAD, newId, newKey, textOf } from "@khala/client";
import type { AccessKeys, CreatedThread, Finish, MessageState, NewRepository, RunOptions, SendResult, Thread, ThreadState, ToolBlock } from "@khala/client";
import type { Chat, ChatData, Data, FromSession, Init, InitData, LoadRepo, LoadRepoData, SessionProblem, RepoFile, ToSession } from "../workers/session.messages.ts";
import { AnswerReporter } from "./answer-reporter.ts";
import { Approvals } from "./approvals.ts";
import { componentsOf } from "./components.ts";
import { SessionError, problemOf } from "./session-error.ts";
import { isRepoFile, validateRequest } from "./request-validation.ts";
import { loadAddress } from "./repository-address.ts";
import { bundleFiles } from "./repository.ts";
import type { Server } from "./server.ts";

/** The function by which a model shows a component, with the argument `html`, if a chat's `options.functions` offer it. */
export const PREVIEW_TOOL = "preview_component";
/** The server's limit for one message. */
const MAX_ATTACHMENTS = 10;

export interface SessionOptions {
  connect: (origin: string, keys: AccessKeys) => Server;
  /** The default server of `init`. */
  origin: string;
  /** Fetches the files of a repository by its URL, in place of the server. They become attachments of the next chat. */
  fetchRepo?: (url: string) => Promise<readonly RepoFile[]>;
}

type Live = { server: Server; threadId: string; options: RunOptions; approvals: Approvals };
type Running = { id: string; answer: AnswerReporter; sent: Promise<SendResult>; messageId?: string; end: Ending };
/** A promise of the ended answer with its resolvers. */
type Ending = { promise: Promise<MessageState>; resolve: (message: MessageState) => void; reject: (error: SessionError) => void };

export class RunSession {
  readonly #send: (message: FromSession) => void;
  readonly #options: SessionOptions;
  readonly #open = new Set<string>();
  #live: Live | null = null;
  #isBeginning = false;
  #state: ThreadState = EMPTY_THREAD;
  #refusal: SessionProblem | null = null;
  #running: Running | null = null;
  #attachments: string[] = [];

  constructor(send: (message: FromSession) => void, options: SessionOptions) {
    this.#send = send;
    this.#options = options;
  }

  /** Handles one message; resolves once its response is sent. */
  async receive(message: unknown): Promise<void> {
    const asked = validateRequest(message);
    if ("problem" in asked) return this.#fail(asked.id, asked.problem);
    if (this.#open.has(asked.id)) return this.#fail(asked.id, { code: "conflict", message: "A request with this id is under way." });
    this.#open.add(asked.id);
    try {
      const data = await this.#answer(asked);
      this.#send({ type: "response", id: asked.id, success: true, data });
    } catch (error) {
      this.#fail(asked.id, problemOf(error));
    } finally {
      this.#open.delete(asked.id);
    }
  }

  /** Closes the subscription. */
  close(): void {
    this.#live?.server.close();
  }

  #fail(id: string | null, error: SessionProblem): void {
    this.#send({ type: "response", id, success: false, error });
  }

  #answer(asked: ToSession): Promise<Data> {
    if (asked.type === "init") return this.#init(asked.payload);
    const live = this.#live;
    if (!live) return Promise.reject(new SessionError("not_ready", "The session has not begun: send `init` and wait for its response."));
    switch (asked.type) {
      case "chat":
        return this.#chat(live, asked.id, asked.payload);
      case "approve_tool":
        return live.approvals.decide(asked.payload);
      case "load_repo":
        return this.#load(live, asked.id, asked.payload);
      case "cancel":
        return this.#cancel(live);
    }
  }

  async #init({ server: origin, anonKey, token, threadId, options = {} }: Init): Promise<InitData> {
    if (this.#live || this.#isBeginning) throw new SessionError("conflict", "The session has begun.");
    this.#isBeginning = true;
    try {
      const key = anonKey ?? (token || threadId ? undefined : newKey());
      const server = this.#options.connect(origin ?? this.#options.origin, { ...(key && { anonKey: key }), ...(token && { token }) });
      const thread = await opened(server, { threadId, key });
      const tools = await server.requestWithRetry<{ items: unknown[] }>("GET", `/api/tools?threadId=${thread.id}`);
      this.#live = { server, threadId: thread.id, options, approvals: new Approvals(server, this.#send) };
      server.follow(thread.id, { state: (state) => this.#take(state), refused: (code, message) => this.#refuse({ code, message }) });
      this.#send({ type: "ready", tools: tools.items.length, threadId: thread.id });
      return { threadId: thread.id, ...(key && !thread.ownerId && { anonKey: key }) };
    } finally {
      this.#isBeginning = false;
    }
  }

  async #chat(live: Live, id: string, { text, options }: Chat): Promise<ChatData> {
    if (this.#running) throw new SessionError("run_active", "The session has a chat under way.");
    if (this.#refusal) throw new SessionError(this.#refusal.code, this.#refusal.message);
    const attachments = this.#attachments;
    if (!text.trim() && attachments.length === 0) throw new SessionError("invalid_input", "`text` is empty.");
    const chosen: RunOptions = { autopilot: true, ...live.options, ...options };
    const sent = live.server.requestWithRetry<SendResult>("POST", `/api/threads/${live.threadId}/send`, { text, messageId: newId(), options: chosen, ...(attachments.length > 0 && { attachments }) });
    const running: Running = { id, answer: new AnswerReporter(id, this.#send), sent, end: ending() };
    this.#running = running;
    try {
      const { userMessageId, assistantMessageId, runId } = await sent;
      this.#attachments = this.#attachments.slice(attachments.length);
      running.messageId = assistantMessageId;
      this.#report(running);
      const message = await running.end.promise;
      const offers = chosen.functions?.some(({ name }) => name === PREVIEW_TOOL) ?? false;
      for (const html of await this.#components(live, message, offers)) this.#send({ type: "preview_component", id, html });
      return this.#ended(id, message, { userMessageId, assistantMessageId, runId });
    } finally {
      this.#running = null;
      live.approvals.clear();
    }
  }

  /** Reports the end, and returns the result of the chat. Throws SessionError for a failed run. */
  #ended(id: string, message: MessageState, ids: Pick<ChatData, "userMessageId" | "assistantMessageId" | "runId">): ChatData {
    const finish: Finish = message.finish ?? { reason: message.status === "canceled" ? "canceled" : "error", usage: { inputTokens: 0, outputTokens: 0 } };
    this.#send({ type: "step", id, done: true, usage: finish.usage, reason: finish.reason, ...(finish.costUsd && { costUsd: finish.costUsd }) });
    if (finish.reason === "error") throw new SessionError(message.failure?.code ?? "failed", message.failure?.message ?? "The run failed.");
    return { ...ids, text: textOf(message), finish };
  }

  #take(state: ThreadState): void {
    this.#state = state;
    if (this.#running) this.#report(this.#running);
  }

  /** Reports what is new in the awaited answer. An answer that a reset removed never ends; see `#miss`. */
  #report(running: Running): void {
    if (!running.messageId) return;
    const message = this.#state.messages.find(({ id }) => id === running.messageId);
    if (!message) return void running.sent.then(({ revision }) => this.#miss(running, revision), () => undefined);
    const ended = running.answer.update(message);
    this.#live?.approvals.update(running.id, message);
    if (ended) running.end.resolve(message);
  }

  #miss(running: Running, revision: number): void {
    const isGone = (this.#state.revision ?? 0) >= revision && !this.#state.messages.some(({ id }) => id === running.messageId);
    if (isGone) running.end.reject(new SessionError("gone", "The thread was reset meanwhile."));
  }

  async #load(live: Live, id: string, asked: LoadRepo): Promise<LoadRepoData> {
    if ("url" in asked && !this.#options.fetchRepo) return this.#loadAddress(live, id, asked);
    const files = "url" in asked ? await this.#fetched(asked.url) : asked.files;
    const { bundles, bytes } = bundleFiles(files);
    if (this.#attachments.length + bundles.length > MAX_ATTACHMENTS) throw new SessionError("too_large", "More than ten attachments would wait for the next chat.");
    const attachments: string[] = [];
    let done = 0;
    this.#send({ type: "progress", id, done, total: files.length });
    for (const bundle of bundles) {
      const path = `/api/threads/${live.threadId}/blobs?name=${encodeURIComponent(bundle.name)}`;
      attachments.push((await live.server.upload(path, new Blob([bundle.text], { type: "text/plain" }))).blobId);
      this.#send({ type: "progress", id, done: (done += bundle.files), total: files.length });
    }
    this.#attachments.push(...attachments);
    return { files: files.length, bytes, attachments };
  }

  /** The server loads the repository into the workspace. `total` is 0 until the number of files is known. */
  async #loadAddress(live: Live, id: string, asked: NewRepository): Promise<LoadRepoData> {
    const repository = await loadAddress(live.server, asked, ({ stage, files = 0, bytes = 0 }) => this.#send({ type: "progress", id, done: files, total: stage === "storing" ? files : 0, stage, bytes }));
    const { files, bytes } = repository;
    this.#send({ type: "progress", id, done: files, total: files, stage: "storing", bytes });
    return { files, bytes, attachments: [], repository };
  }

  async #fetched(url: string): Promise<readonly RepoFile[]> {
    const files = await this.#options.fetchRepo?.(url);
    if (!files?.every(isRepoFile)) throw new SessionError("internal", "`fetchRepo` did not return a list of files.");
    return files;
  }

  async #cancel(live: Live): Promise<Data> {
    if (!this.#running) throw new SessionError("not_found", "No chat is under way.");
    const { runId } = await this.#running.sent;
    await live.server.requestWithRetry("POST", `/api/runs/${runId}/cancel`, {});
    return { runId };
  }

  /** The subscription ended for good: fail the running chat. */
  #refuse(problem: SessionProblem): void {
    this.#refusal = problem;
    this.#running?.end.reject(new SessionError(problem.code, problem.message));
    this.#send({ type: "error", error: problem });
  }

  /** The components of an answer: marked code blocks, and calls of the preview function if it was offered. */
  async #components(live: Live, message: MessageState, offers: boolean): Promise<string[]> {
    const calls = message.content.flatMap((block) => (offers && block.type === "tool" && block.tool === PREVIEW_TOOL ? [block] : []));
    const called = await Promise.all(calls.map((call) => argsOf(live.server, call)));
    return [...componentsOf(spokenOf(message)), ...called.flatMap(({ html }) => (typeof html === "string" ? [html] : []))];
  }
}

function ending(): Ending {
  let settle: Omit<Ending, "promise"> = { resolve: () => undefined, reject: () => undefined };
  const promise = new Promise<MessageState>((resolve, reject) => (settle = { resolve, reject }));
  promise.catch(() => undefined); // it may reject while the send, whose own failure is reported, is pending
  return { promise, ...settle };
}

/** The named thread, or a new one. */
async function opened(server: Server, { threadId, key }: { threadId: string | undefined; key: string | undefined }): Promise<Thread> {
  if (threadId) return (await server.requestWithRetry<{ thread: Thread }>("GET", `/api/threads/${threadId}?limit=1`)).thread;
  return (await server.requestWithRetry<CreatedThread>("POST", "/api/threads", { id: newId(), ...(key && { anonKey: key }) })).thread;
}

/** The arguments of a call, also if they are stored in a blob. */
async function argsOf(server: Server, { args, argsBlob }: ToolBlock): Promise<Record<string, unknown>> {
  if (args || !argsBlob) return args ?? {};
  const value: unknown = JSON.parse(await server.text(`/api/blobs/${argsBlob.blobId}?direct=true`));
  return typeof value === "object" && value !== null ? { ...value } : {};
}

/** The text of an answer, with a line break in place of each tool call so that a code block after it starts on its own line. */
function spokenOf({ content }: MessageState): string {
  return content.map((block) => (block.type === "text" ? block.text : block.type === "tool" ? "\n" : "")).join("");
}
