// @khala/client/ai-sdk: a chat transport for `useChat` of the AI SDK, over Khala's `/api/chat`.

import type { ChatTransport, UIMessage, UIMessageChunk } from "ai";

import { addressOf, Api } from "./api.ts";
import { ReplayFilter } from "./chunk-replay.ts";
import { Authenticator } from "./credentials.ts";
import type { Credentials } from "./credentials.ts";
import type { RunOptions } from "./frames.ts";
import { ApiError, eventsOf, isTransient, NetworkError, openStream, retryDelayMs, sleep, withRetry } from "./requests.ts";
import type { Store } from "./stores.ts";
import { defaultStore } from "./stores.ts";

export type { Credentials, TokenProvider } from "./credentials.ts";

/** The server reads no more earlier messages than these. */
const MAX_SENT_MESSAGES = 21;
/** Attempts to continue a stream that breaks off without a new chunk each time. */
const MAX_ATTEMPTS = 8;
const OFFLINE_CHECK_INTERVAL_MS = 5_000;
/** A request that could not be sent for so long is not sent any more. */
const MAX_UNSENT_MS = 24 * 3_600_000;

/** A request that the server has not accepted yet. `id` is that of its chat. */
export interface UnsentChat {
  readonly id: string;
  readonly body: { readonly messages: readonly UIMessage[] };
  /** When it was sent first, in ms since the epoch. */
  readonly at: number;
}

export interface KhalaChatTransportOptions {
  /** The address of the server. In a browser, by default that of the page. */
  server?: string | URL;
  credentials?: Credentials;
  /** Options of each run: model, agent, autopilot and so on. `body.options` of a request takes precedence. */
  options?: RunOptions | (() => RunOptions);
  /** Whether `stop()` of the chat cancels the run. By default true; otherwise the answer continues on the server. */
  stopCancels?: boolean;
  /** Identifies the person for whom requests are stored that could not be sent. By default the `anonKey`. */
  user?: string;
  /** Where they are stored. By default IndexedDB if it exists and the person is known, else memory. */
  storage?: Store<UnsentChat>;
}

type SendOptions<Message extends UIMessage> = Parameters<ChatTransport<Message>["sendMessages"]>[0];
type ReconnectOptions<Message extends UIMessage> = Parameters<ChatTransport<Message>["reconnectToStream"]>[0];

/**
 * A transport for `useChat`. Beyond the `DefaultChatTransport`: it continues an answer when the connection or the server is
 * lost in the middle, repeats requests under the same message id, waits while the browser is offline, stores a request that
 * could not be sent, renews tokens, and cancels the run on `stop()`.
 */
export class KhalaChatTransport<Message extends UIMessage = UIMessage> implements ChatTransport<Message> {
  readonly resumeStreamIsReplay = true;
  readonly #api: Api;
  readonly #options: KhalaChatTransportOptions;
  readonly #unsent: Store<UnsentChat>;

  constructor(options: KhalaChatTransportOptions = {}) {
    const { server, credentials = {}, user = credentials.anonKey, storage } = options;
    this.#api = new Api(addressOf(server), new Authenticator(credentials));
    this.#options = options;
    this.#unsent = storage ?? defaultStore(`khala-chats ${this.#api.server}`, user);
  }

  /** The messages of a chat, for `useChat({ messages })`: those of the server, then one that could not be sent yet. */
  async load(chatId: string, { limit = 100 }: { limit?: number } = {}): Promise<Message[]> {
    const stored = await this.#api.send<Message[]>("GET", this.#path(chatId), { query: { limit } });
    const last = (await this.#unsentOf(chatId))?.body.messages.at(-1);
    // It may have arrived after all, under an id that the server derives from the client's.
    const newest = stored.findLast(({ role }) => role === "user");
    const isStored = last?.role !== "user" || JSON.stringify(newest?.parts) === JSON.stringify(last.parts);
    return isStored ? stored : [...stored, last as Message];
  }

  /** Send the last of the messages, and return the stream of its answer. Rejects with `ApiError` or `NetworkError`. */
  async sendMessages({ chatId, messages, trigger, messageId, abortSignal, body }: SendOptions<Message>): Promise<ReadableStream<UIMessageChunk>> {
    const { options } = this.#options;
    const given = (body as { options?: RunOptions } | undefined)?.options;
    const runOptions = { ...(typeof options === "function" ? options() : options), ...given };
    const sent = { ...body, id: chatId, messages: messages.slice(-MAX_SENT_MESSAGES), trigger, messageId, options: runOptions };
    if (trigger === "submit-message") await this.#unsent.put({ id: chatId, body: sent, at: Date.now() }).catch(() => undefined);
    return this.#post(chatId, sent, abortSignal);
  }

  /** The answer that is being written, from its beginning, or that of a request which could not be sent; null if there is none. */
  async reconnectToStream({ chatId, abortSignal }: ReconnectOptions<Message>): Promise<ReadableStream<UIMessageChunk> | null> {
    const unsent = await this.#unsentOf(chatId);
    if (unsent) return this.#post(chatId, unsent.body, abortSignal);
    const [reader, signal] = readerOf(abortSignal);
    const path = `${this.#path(chatId)}/stream`;
    const open = (): Promise<Response> => this.#open("GET", path, undefined, signal);
    const first = await open();
    if (first.status === 204) return null;
    // An answer that has ended meanwhile is not streamed any more, but its question can be sent again, which changes nothing.
    const resume = async (replay: ReplayFilter): Promise<Response> => {
      const response = await open();
      return response.status === 204 ? this.#replayEnded(chatId, replay.messageId, signal) : response;
    };
    return this.#stream(chatId, chunksOf(first, resume, signal), reader, abortSignal);
  }

  async #post(chatId: string, body: object, abortSignal?: AbortSignal): Promise<ReadableStream<UIMessageChunk>> {
    const [reader, signal] = readerOf(abortSignal);
    const open = (): Promise<Response> => this.#open("POST", "/api/chat", body, signal);
    const settle = (): Promise<void> => this.#unsent.remove(chatId).catch(() => undefined);
    try {
      const first = await open();
      await settle();
      return this.#stream(chatId, chunksOf(first, open, signal), reader, abortSignal);
    } catch (error) {
      if (!isTransient(error)) await settle();
      if (abortSignal?.aborted) this.#cancel(chatId);
      throw error;
    }
  }

  /** Open a stream. Waits while the browser is offline, and tries again after errors that pass. */
  #open(method: string, path: string, body: object | undefined, signal?: AbortSignal): Promise<Response> {
    const options = { ...(body && { body }), ...(signal && { signal }) };
    const send = async (): Promise<Response> => {
      while (isOffline() && !signal?.aborted) await pause(OFFLINE_CHECK_INTERVAL_MS, signal);
      return this.#api.auth.send((keys) => openStream(method, this.#api.url(path), { ...options, keys }));
    };
    return withRetry(send, { wait: (milliseconds) => pause(milliseconds, signal) });
  }

  async #replayEnded(chatId: string, answerId: string | null, signal?: AbortSignal): Promise<Response> {
    const messages = await this.#api.send<UIMessage[]>("GET", this.#path(chatId), { signal });
    const at = messages.findIndex(({ id }) => id === answerId);
    const question = messages.slice(0, Math.max(at, 0)).findLast(({ role }) => role === "user");
    if (question === undefined) throw new ApiError(404, { code: "run_not_found", detail: "The answer is no longer in this chat." });
    return this.#open("POST", "/api/chat", { id: chatId, messages: [question], trigger: "submit-message" }, signal);
  }

  #stream(chatId: string, chunks: AsyncGenerator<UIMessageChunk, void>, reader: AbortController, signal?: AbortSignal): ReadableStream<UIMessageChunk> {
    const onAbort = (): void => this.#cancel(chatId);
    signal?.addEventListener("abort", onAbort, { once: true });
    const end = (): void => signal?.removeEventListener("abort", onAbort);
    return new ReadableStream<UIMessageChunk>({
      async pull(controller) {
        try {
          const { value, done } = await chunks.next();
          if (!done) return controller.enqueue(value);
          end();
          controller.close();
        } catch (error) {
          end();
          controller.error(error);
        }
      },
      cancel() {
        end();
        reader.abort();
      },
    });
  }

  /** Cancel the run, if `stop()` does that. Nobody waits for it: the stream has ended for the chat already. */
  #cancel(chatId: string): void {
    if (this.#options.stopCancels === false) return;
    this.#api.send("POST", `${this.#path(chatId)}/stop`, { isIdempotent: true }).catch(() => undefined);
  }

  async #unsentOf(chatId: string): Promise<UnsentChat | undefined> {
    const unsent = await this.#unsent.get(chatId).catch(() => undefined);
    return unsent && Date.now() - unsent.at < MAX_UNSENT_MS ? unsent : undefined;
  }

  #path(chatId: string): string {
    return `/api/chat/${encodeURIComponent(chatId)}`;
  }
}

/** A controller for whoever reads a stream, and a signal that it aborts, as the signal of the chat does. */
function readerOf(signal: AbortSignal | undefined): [AbortController, AbortSignal] {
  const reader = new AbortController();
  return [reader, signal ? AbortSignal.any([signal, reader.signal]) : reader.signal];
}

/** The chunks of an answer. A stream that breaks off before `[DONE]` is resumed; chunks that were there before are left out. */
async function* chunksOf(first: Response, resume: (replay: ReplayFilter) => Promise<Response>, signal?: AbortSignal): AsyncGenerator<UIMessageChunk, void> {
  const replay = new ReplayFilter();
  let response = first;
  for (let attempt = 0; ; attempt++) {
    let failure: unknown = new NetworkError("The stream broke off.");
    try {
      for await (const data of eventsOf(response, signal)) {
        if (data === "[DONE]") return;
        const chunk = replay.take(JSON.parse(data) as UIMessageChunk);
        if (chunk === null) continue;
        attempt = 0;
        yield chunk;
      }
    } catch (error) {
      failure = error;
    }
    if (!isTransient(failure) || attempt + 1 >= MAX_ATTEMPTS) throw failure;
    await pause(retryDelayMs(attempt, failure), signal);
    response = await resume(replay);
    replay.restart();
  }
}

/** Wait, until the network comes back or `signal` is aborted at the latest. */
async function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  let end = (): void => undefined;
  const aborted = new Promise<void>((resolve) => (end = resolve));
  signal?.addEventListener("abort", end);
  await Promise.race([sleep(milliseconds), aborted]);
  signal?.removeEventListener("abort", end);
}

function isOffline(): boolean {
  return (globalThis.navigator as { onLine?: boolean } | undefined)?.onLine === false;
}
