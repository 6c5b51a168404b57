// HTTP requests to the API, and retry with exponential backoff. Works in pages, workers and Node.

import type { BlobRef, FieldError, Problem } from "./frames.ts";

const REQUEST_TIMEOUT_MS = 15_000;
/** For uploads and downloads. */
const FILE_TIMEOUT_MS = 600_000;
/** Upper bound of the `Retry-After` that is respected. */
const MAX_RETRY_AFTER_SECONDS = 30;

/** Credentials for a thread or an account. In a browser the session cookie is sent as well. */
export interface AccessKeys {
  anonKey?: string;
  shareKey?: string;
  /** An API token, sent as a bearer token. */
  token?: string;
}

export interface RequestOptions {
  body?: unknown;
  keys?: AccessKeys;
  signal?: AbortSignal;
}

/** An error response of the server with its stable `code`. `retryAfter` is in seconds, null without that header. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;
  readonly errors: readonly FieldError[];
  readonly retryAfter: number | null;
  /** The name of the limit that refused the request, with status 429. */
  readonly limit: string | null;

  constructor(status: number, problem: Partial<Problem>, retryAfter: number | null = null) {
    super(problem.detail ?? problem.title ?? `The server answered ${status}.`);
    this.name = "ApiError";
    this.status = status;
    this.code = problem.code ?? (status >= 500 ? "unavailable" : "unknown");
    this.errors = problem.errors ?? [];
    this.retryAfter = retryAfter;
    this.limit = problem.limit ?? null;
  }
}

/** The server could not be reached or did not answer in time. It may have carried out the request all the same. */
export class NetworkError extends Error {
  override readonly name = "NetworkError";
}

/**
 * Send one request to the API and return its JSON answer, null for 204. Throws `ApiError`, `NetworkError`, or an
 * `AbortError` once `signal` aborts. `path` begins with `/api` on the page's own server, or is a full URL.
 */
export async function request<T>(method: string, path: string, { body, keys = {}, signal }: RequestOptions = {}): Promise<T> {
  const json = body === undefined ? {} : { "Content-Type": "application/json" };
  const headers = { Accept: "application/json", ...keyHeaders(keys), ...json };
  const init = { method, headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) };
  const response = await fetchResponse(path, init, REQUEST_TIMEOUT_MS, signal);
  return parseAnswer(response.status, await readText(response, signal), response.headers.get("Retry-After")) as T;
}

/** Download the content at a path of the API. Errors as those of `request`. */
export async function downloadBlob(path: string, { keys = {}, signal }: Omit<RequestOptions, "body"> = {}): Promise<Blob> {
  const response = await fetchResponse(path, { headers: keyHeaders(keys) }, FILE_TIMEOUT_MS, signal);
  if (!response.ok) throw apiErrorFrom(response.status, await readText(response, signal), response.headers.get("Retry-After"));
  return response.blob().catch((error: unknown) => {
    throw toNetworkError(error, signal);
  });
}

export interface UploadOptions {
  keys?: AccessKeys;
  signal?: AbortSignal;
  /** Called with the share of the file that is sent, from 0 to 1. Only where `XMLHttpRequest` exists. */
  onProgress?: (share: number) => void;
}

/** Upload a file to `path`, such as `POST /api/threads/{id}/blobs?name=`, whose answer is a `BlobRef`. Errors as those of `request`. */
export async function upload<T = BlobRef>(path: string, file: Blob, { keys = {}, signal, onProgress: progress }: UploadOptions = {}): Promise<T> {
  const headers = { Accept: "application/json", ...keyHeaders(keys), "Content-Type": file.type || "application/octet-stream" };
  // Only XMLHttpRequest reports upload progress, and Node has none.
  if (progress && typeof XMLHttpRequest !== "undefined") return parseAnswer(...(await uploadWithProgress(path, file, headers, progress, signal))) as T;
  const response = await fetchResponse(path, { method: "POST", headers, body: file }, FILE_TIMEOUT_MS, signal);
  return parseAnswer(response.status, await readText(response, signal), response.headers.get("Retry-After")) as T;
}

/**
 * Send one request whose answer is a stream of server-sent events, and pass on the JSON of each. Resolves at the end of the
 * stream. Errors as those of `request`; a stream that breaks off is a `NetworkError`.
 */
export async function requestEvents(path: string, { body, keys = {}, signal }: RequestOptions, onEvent: (event: unknown) => void): Promise<void> {
  const headers = { Accept: "text/event-stream, application/json", ...keyHeaders(keys), "Content-Type": "application/json" };
  const response = await fetchResponse(path, { method: "POST", headers, body: JSON.stringify(body) }, FILE_TIMEOUT_MS, signal);
  if (!response.ok) throw apiErrorFrom(response.status, await readText(response, signal), response.headers.get("Retry-After"));
  for await (const data of eventsOf(response, signal)) onEvent(JSON.parse(data));
}

/**
 * The data of each server-sent event of a response, which the server writes on one line. A stream that breaks off is a
 * `NetworkError`; a proxy may also end it as if it were complete.
 */
export async function* eventsOf(response: Response, signal?: AbortSignal): AsyncGenerator<string, void> {
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (let read = await reader?.read(); read && !read.done; read = await reader?.read()) {
      const events = (rest + read.value).split("\n\n");
      rest = events.pop() ?? "";
      for (const event of events) {
        const line = event.split("\n").find((one) => one.startsWith("data: "));
        if (line !== undefined) yield line.slice("data: ".length);
      }
    }
  } catch (error) {
    throw toNetworkError(error, signal);
  } finally {
    void reader?.cancel().catch(() => undefined);
  }
}

/** Send a request whose answer is a stream, and return the response, 204 included. Errors as those of `request`. */
export async function openStream(method: string, path: string, { body, keys = {}, signal }: RequestOptions = {}): Promise<Response> {
  const headers = { Accept: "text/event-stream, application/json", ...keyHeaders(keys), ...(body === undefined ? {} : { "Content-Type": "application/json" }) };
  const init = { method, headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) };
  const response = await fetchResponse(path, init, null, signal);
  if (!response.ok) throw apiErrorFrom(response.status, await readText(response, signal), response.headers.get("Retry-After"));
  return response;
}

/** Whether the same request may succeed a little later. */
export function isTransient(error: unknown): error is NetworkError | ApiError {
  return error instanceof NetworkError || (error instanceof ApiError && error.status >= 500);
}

/** Whether this is an error of a request: an error response, or no response. Any other error is a bug of the caller. */
export function isRequestError(error: unknown): error is NetworkError | ApiError {
  return error instanceof NetworkError || error instanceof ApiError;
}

/** Send a request up to `maxAttempts` times while it fails with a transient error. Use it for idempotent requests only. */
export async function withRetry<T>(send: () => Promise<T>, { maxAttempts = 8, wait = sleep }: { maxAttempts?: number; wait?: (milliseconds: number) => Promise<void> } = {}): Promise<T> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await send();
    } catch (error) {
      if (!isTransient(error) || attempt + 1 >= maxAttempts) throw error;
      await wait(retryDelayMs(attempt, error));
    }
  }
}

/** Milliseconds to wait after attempt number `attempt` (from 0) failed with a transient error. Respects `Retry-After` up to 30 s. */
export function retryDelayMs(attempt: number, error: unknown): number {
  const retryAfter = error instanceof ApiError ? (error.retryAfter ?? 0) : 0;
  return Math.max(backoffMs(attempt, Math.random()), 1000 * Math.min(retryAfter, MAX_RETRY_AFTER_SECONDS));
}

/** Milliseconds before attempt number `attempt` (from 0): exponential between 250 and 8,000, jittered by `random` in [0, 1). */
export function backoffMs(attempt: number, random: number): number {
  const ceiling = Math.min(8000, 500 * 2 ** Math.min(attempt, 10));
  return 250 + random * (ceiling - 250);
}

/** Dispatches "wake" when waiting requests should be retried at once. See `retryNow`. */
export const retrySignal = new EventTarget();

/** Retry all waiting requests at once. Call it when the network or the tab comes back. */
export function retryNow(): void {
  retrySignal.dispatchEvent(new Event("wake"));
}

/** Wait `milliseconds`, or until `signal` dispatches "wake". */
export function sleep(milliseconds: number, signal: EventTarget = retrySignal): Promise<void> {
  return new Promise((resolve) => {
    const end = (): void => {
      clearTimeout(timer);
      signal.removeEventListener("wake", end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    signal.addEventListener("wake", end);
  });
}

/**
 * What is wrong with a token or a key, null if it fits into a header. `fetch` would throw an error that looks like one of the
 * network, and is repeated.
 */
export function credentialProblem(name: string, value: string): string | null {
  const wrong = Array.from(value).find((one) => one < "!" || one > "~");
  if (wrong === undefined) return null;
  const hint = wrong > "~" ? " Replace the placeholder of the example." : "";
  return `${name} consists of printable ASCII characters without spaces, but this one contains ${JSON.stringify(wrong)}.${hint}`;
}

/** Throws the `ApiError` that the server would answer, if a credential fits into no header. */
function keyHeaders({ anonKey, shareKey, token }: AccessKeys): Record<string, string> {
  for (const [name, value] of Object.entries({ "An anonymous key": anonKey, "A share key": shareKey, "A token": token })) {
    const detail = credentialProblem(name, value ?? "");
    if (detail !== null) throw new ApiError(401, { code: "unauthorized", detail });
  }
  return {
    ...(anonKey && { "X-Anon-Key": anonKey }),
    ...(shareKey && { "X-Share-Key": shareKey }),
    ...(token && { Authorization: `Bearer ${token}` }),
  };
}

async function fetchResponse(path: string, init: RequestInit, timeoutMs: number | null, signal?: AbortSignal): Promise<Response> {
  const signals = [...(timeoutMs === null ? [] : [AbortSignal.timeout(timeoutMs)]), ...(signal ? [signal] : [])];
  try {
    return await fetch(path, { ...init, cache: "no-store", signal: AbortSignal.any(signals) });
  } catch (error) {
    throw toNetworkError(error, signal);
  }
}

async function readText(response: Response, signal?: AbortSignal): Promise<string> {
  try {
    return await response.text();
  } catch (error) {
    throw toNetworkError(error, signal);
  }
}

function toNetworkError(cause: unknown, signal?: AbortSignal): Error {
  if (signal?.aborted) return new DOMException("The request was called off.", "AbortError");
  return new NetworkError("The server could not be reached.", { cause });
}

function parseAnswer(...[status, body, retryAfter]: RawAnswer): unknown {
  if (status < 200 || status >= 300) throw apiErrorFrom(status, body, retryAfter);
  const answer = status === 204 ? null : parseJson(body);
  if (answer === undefined) throw new NetworkError("The answer was cut off.");
  return answer;
}

function apiErrorFrom(...[status, body, retryAfter]: RawAnswer): ApiError {
  const seconds = Number.parseFloat(retryAfter ?? "");
  const problem = parseJson(body);
  const fields = typeof problem === "object" && problem !== null ? problem : {};
  return new ApiError(status, fields, Number.isFinite(seconds) ? seconds : null);
}

function parseJson(body: string): unknown {
  try {
    return JSON.parse(body);
  } catch {
    return undefined; // an error page of a proxy, or an incomplete answer
  }
}

/** Status, body and the `Retry-After` header. */
type RawAnswer = [number, string, string | null];

function uploadWithProgress(path: string, file: Blob, headers: Record<string, string>, progress: (share: number) => void, signal?: AbortSignal): Promise<RawAnswer> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const stop = (): void => request.abort();
    const settle = (act: () => void): void => {
      signal?.removeEventListener("abort", stop);
      act();
    };
    const fail = (): void => settle(() => reject(toNetworkError(undefined, signal)));
    request.open("POST", path);
    request.timeout = FILE_TIMEOUT_MS;
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => event.lengthComputable && progress(event.loaded / event.total);
    request.onerror = request.ontimeout = request.onabort = fail;
    request.onload = () => settle(() => resolve([request.status, request.responseText, request.getResponseHeader("Retry-After")]));
    signal?.addEventListener("abort", stop);
    if (signal?.aborted) fail();
    else request.send(file);
  });
}
