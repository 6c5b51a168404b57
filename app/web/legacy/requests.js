// Requests to the API: ids and secrets for them, one call, and how to insist where the network fails.

import { backoff } from "./state.js";

const REQUEST_MS = 15_000;
/** Files may take their time. */
const FILE_MS = 600_000;

/** A new id: a UUID of version 7. Made by hand, because `crypto.randomUUID` is missing on plain-HTTP hosts. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  let now = Date.now();
  for (let index = 5; index >= 0; index--, now = Math.floor(now / 256)) bytes[index] = now % 256;
  bytes[6] = (bytes[6] & 0x0f) | 0x70;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  return hex(bytes).replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

/** A new secret of 256 bits. */
export function newKey() {
  return hex(crypto.getRandomValues(new Uint8Array(32)));
}

function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The server's "no", with its stable `code`; `retryAfter` in seconds where it named one. */
export class Refusal extends Error {
  constructor(status, problem, retryAfter) {
    super(problem.detail ?? problem.title ?? `The server answered ${status}.`);
    this.status = status;
    this.code = problem.code ?? (status >= 500 ? "unavailable" : "unknown");
    this.errors = problem.errors ?? [];
    this.retryAfter = retryAfter;
  }
}

/** The server could not be reached, or did not answer in time. What was asked may have happened all the same. */
export class Unreachable extends Error {}

/**
 * One request to the API: its JSON answer, or a Refusal, or Unreachable. `key` and `shareKey` open a thread; `file` is sent
 * as it is, until `signal` aborts that.
 */
export async function call(method, path, { body, file, signal, key, shareKey } = {}) {
  const headers = { Accept: "application/json", ...opening({ key, shareKey }) };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (file) headers["Content-Type"] = file.type || "application/octet-stream";
  const response = await answered(path, { method, headers, body: file ?? (body && JSON.stringify(body)) }, file ? FILE_MS : REQUEST_MS, signal);
  if (response.status === 204) return null;
  const answer = await response.json().catch(() => null);
  if (response.ok && answer !== null) return answer;
  if (response.ok) throw new Unreachable("The answer was cut off.");
  throw refusal(response, answer);
}

/** What is kept at an address of the API, as a Blob; or a Refusal, or Unreachable. */
export async function bytes(path, keys = {}) {
  const response = await answered(path, { headers: opening(keys) }, FILE_MS);
  if (!response.ok) throw refusal(response, await response.json().catch(() => null));
  return response.blob().catch((error) => {
    throw new Unreachable("The answer was cut off.", { cause: error });
  });
}

function opening({ key, shareKey }) {
  return { ...(key && { "X-Anon-Key": key }), ...(shareKey && { "X-Share-Key": shareKey }) };
}

function refusal(response, answer) {
  const seconds = Number.parseFloat(response.headers.get("Retry-After") ?? "");
  return new Refusal(response.status, answer ?? {}, Number.isFinite(seconds) ? seconds : null);
}

async function answered(path, init, patience = REQUEST_MS, signal = null) {
  const ends = [AbortSignal.timeout(patience), ...(signal ? [signal] : [])];
  try {
    return await fetch(path, { ...init, cache: "no-store", signal: AbortSignal.any(ends) });
  } catch (error) {
    throw new Unreachable("The server could not be reached.", { cause: error });
  }
}

/** Whether the same request may succeed a little later. */
export function isPassing(error) {
  return error instanceof Unreachable || (error instanceof Refusal && error.status >= 500);
}

/** Ask until the server says yes or no, at most `tries` times; only for requests that may be repeated safely. */
export async function insist(ask, { tries = 8, wait = pause } = {}) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await ask();
    } catch (error) {
      if (!isPassing(error) || attempt + 1 >= tries) throw error;
      await wait(Math.max(backoff(attempt, Math.random()), 1000 * Math.min(error.retryAfter ?? 0, 30)));
    }
  }
}

/** Wait; a page that has reason to try at once dispatches "khala-wake" on its window. */
export function pause(milliseconds) {
  const done = new AbortController();
  return new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
    addEventListener("khala-wake", resolve, { signal: done.signal });
  }).finally(() => done.abort());
}
