// Requests to the API: one call, and how to insist where the network fails. Works in pages, workers and Node.

import type { BlobRef, FieldError, Problem } from "./frames.ts";

const REQUEST_MS = 15_000;
/** Files may take their time. */
const FILE_MS = 600_000;
/** The longest that `insist` waits because a server asks for it, in seconds. */
const MOST_PATIENCE = 30;

/** What opens a thread or an account besides the browser's cookie. */
export interface Keys {
  anonKey?: string;
  shareKey?: string;
  /** An API token, sent as bearer. */
  token?: string;
}

export interface CallOptions {
  body?: unknown;
  keys?: Keys;
  signal?: AbortSignal;
}

/** The server's "no", with its stable `code`; `retryAfter` in seconds where it named one. */
export class Refusal extends Error {
  readonly status: number;
  readonly code: string;
  readonly errors: readonly FieldError[];
  readonly retryAfter: number | null;

  constructor(status: number, problem: Partial<Problem>, retryAfter: number | null = null) {
    super(problem.detail ?? problem.title ?? `The server answered ${status}.`);
    this.name = "Refusal";
    this.status = status;
    this.code = problem.code ?? (status >= 500 ? "unavailable" : "unknown");
    this.errors = problem.errors ?? [];
    this.retryAfter = retryAfter;
  }
}

/** The server could not be reached, or did not answer in time. What was asked may have happened all the same. */
export class Unreachable extends Error {
  override readonly name = "Unreachable";
}

/**
 * One request to the API: its JSON answer (null for 204), or a Refusal, or Unreachable; an AbortError once `signal`
 * aborts. `path` begins with `/api` on the page's own server, or is a whole address.
 */
export async function call<T>(method: string, path: string, { body, keys = {}, signal }: CallOptions = {}): Promise<T> {
  const json = body === undefined ? {} : { "Content-Type": "application/json" };
  const headers = { Accept: "application/json", ...opening(keys), ...json };
  const init = { method, headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) };
  const response = await answered(path, init, REQUEST_MS, signal);
  return outcome(response.status, await text(response, signal), response.headers.get("Retry-After")) as T;
}

/** What is kept at an address of the API, as a Blob; or a Refusal, or Unreachable. */
export async function bytes(path: string, { keys = {}, signal }: Omit<CallOptions, "body"> = {}): Promise<Blob> {
  const response = await answered(path, { headers: opening(keys) }, FILE_MS, signal);
  if (!response.ok) throw refusal(response.status, await text(response, signal), response.headers.get("Retry-After"));
  return response.blob().catch((error: unknown) => {
    throw lost(error, signal);
  });
}

export interface UploadOptions {
  keys?: Keys;
  signal?: AbortSignal;
  /** Told how much of the file is sent, from 0 to 1; only where the platform knows. */
  progress?: (share: number) => void;
}

/** Send a file as it is to `path`, `POST /api/threads/{id}/blobs?name=`; errors as those of `call`. */
export async function upload(path: string, file: Blob, { keys = {}, signal, progress }: UploadOptions = {}): Promise<BlobRef> {
  const headers = { Accept: "application/json", ...opening(keys), "Content-Type": file.type || "application/octet-stream" };
  // Only XMLHttpRequest tells how much of a body has gone out, and Node has none.
  if (progress && typeof XMLHttpRequest !== "undefined") return outcome(...(await watched(path, file, headers, progress, signal))) as BlobRef;
  const response = await answered(path, { method: "POST", headers, body: file }, FILE_MS, signal);
  return outcome(response.status, await text(response, signal), response.headers.get("Retry-After")) as BlobRef;
}

/** Whether the same request may succeed a little later. */
export function isPassing(error: unknown): error is Unreachable | Refusal {
  return error instanceof Unreachable || (error instanceof Refusal && error.status >= 500);
}

/** Whether this is the server's no, or that it could not be reached; all else is a mistake of whoever asked. */
export function isFailure(error: unknown): error is Unreachable | Refusal {
  return error instanceof Unreachable || error instanceof Refusal;
}

/** Ask until the server says yes or no, at most `tries` times; only for requests that may be repeated safely. */
export async function insist<T>(ask: () => Promise<T>, { tries = 8, wait = pause }: { tries?: number; wait?: (milliseconds: number) => Promise<void> } = {}): Promise<T> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await ask();
    } catch (error) {
      if (!isPassing(error) || attempt + 1 >= tries) throw error;
      await wait(patience(attempt, error));
    }
  }
}

/** How long to wait, in milliseconds, after try number `attempt` (from 0) failed in a way that passes. */
export function patience(attempt: number, error: unknown): number {
  const named = error instanceof Refusal ? (error.retryAfter ?? 0) : 0;
  return Math.max(backoff(attempt, Math.random()), 1000 * Math.min(named, MOST_PATIENCE));
}

/** Milliseconds before try number `attempt` (from 0): exponential between 250 and 8,000, jittered by `random` in [0, 1). */
export function backoff(attempt: number, random: number): number {
  const ceiling = Math.min(8000, 500 * 2 ** Math.min(attempt, 10));
  return 250 + random * (ceiling - 250);
}

/** Where `pause` hears that there is reason to try at once, by an event "wake": see `wake`. */
export const alarm = new EventTarget();

/** End all pauses: the network or the tab has come back. */
export function wake(): void {
  alarm.dispatchEvent(new Event("wake"));
}

/** Wait so many milliseconds, or until `clock` has an event "wake". */
export function pause(milliseconds: number, clock: EventTarget = alarm): Promise<void> {
  return new Promise((resolve) => {
    const end = (): void => {
      clearTimeout(timer);
      clock.removeEventListener("wake", end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    clock.addEventListener("wake", end);
  });
}

function opening({ anonKey, shareKey, token }: Keys): Record<string, string> {
  return {
    ...(anonKey && { "X-Anon-Key": anonKey }),
    ...(shareKey && { "X-Share-Key": shareKey }),
    ...(token && { Authorization: `Bearer ${token}` }),
  };
}

async function answered(path: string, init: RequestInit, most: number, signal?: AbortSignal): Promise<Response> {
  const ends = [AbortSignal.timeout(most), ...(signal ? [signal] : [])];
  try {
    return await fetch(path, { ...init, cache: "no-store", signal: AbortSignal.any(ends) });
  } catch (error) {
    throw lost(error, signal);
  }
}

async function text(response: Response, signal?: AbortSignal): Promise<string> {
  try {
    return await response.text();
  } catch (error) {
    throw lost(error, signal);
  }
}

function lost(cause: unknown, signal?: AbortSignal): Error {
  if (signal?.aborted) return new DOMException("The request was called off.", "AbortError");
  return new Unreachable("The server could not be reached.", { cause });
}

function outcome(...[status, body, retryAfter]: Answer): unknown {
  if (status < 200 || status >= 300) throw refusal(status, body, retryAfter);
  const answer = status === 204 ? null : parsed(body);
  if (answer === undefined) throw new Unreachable("The answer was cut off.");
  return answer;
}

function refusal(...[status, body, retryAfter]: Answer): Refusal {
  const seconds = Number.parseFloat(retryAfter ?? "");
  const problem = parsed(body);
  const said = typeof problem === "object" && problem !== null ? problem : {};
  return new Refusal(status, said, Number.isFinite(seconds) ? seconds : null);
}

function parsed(body: string): unknown {
  try {
    return JSON.parse(body);
  } catch {
    return undefined; // a proxy's page, or half an answer
  }
}

/** A status, a body, and what `Retry-After` says. */
type Answer = [number, string, string | null];

function watched(path: string, file: Blob, headers: Record<string, string>, progress: (share: number) => void, signal?: AbortSignal): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const stop = (): void => request.abort();
    const settle = (act: () => void): void => {
      signal?.removeEventListener("abort", stop);
      act();
    };
    const fail = (): void => settle(() => reject(lost(undefined, signal)));
    request.open("POST", path);
    request.timeout = FILE_MS;
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => event.lengthComputable && progress(event.loaded / event.total);
    request.onerror = request.ontimeout = request.onabort = fail;
    request.onload = () => settle(() => resolve([request.status, request.responseText, request.getResponseHeader("Retry-After")]));
    signal?.addEventListener("abort", stop);
    if (signal?.aborted) fail();
    else request.send(file);
  });
}
