// Reads blobs over HTTP with retry: as a whole, a range of bytes, or matching lines.

import { ApiError, downloadBlob, NetworkError, request, withRetry } from "@khala/client";
import type { BlobRef, Problem, ReadResult } from "@khala/client";
import type { BlobAccessKeys, LineQuery } from "../workers/detail.messages.ts";

const READ_TIMEOUT_MS = 60_000;
const MAX_ATTEMPTS = 3;
const LINES_PER_PAGE = "100";

/** The access keys, and the signal that cancels the request. */
export type ReadOptions = { keys: BlobAccessKeys; signal: AbortSignal };

// From the server itself (`direct`), not from its object storage: the page's policy allows no other origin.
const blobPath = ({ blobId }: BlobRef) => `/api/blobs/${blobId}?direct=true`;

/** Read all bytes of a blob. Like the functions below, it throws ApiError, NetworkError, or AbortError. */
export function readAll(blob: BlobRef, asking: ReadOptions): Promise<Blob> {
  return withRetry(() => downloadBlob(blobPath(blob), asking), { maxAttempts: MAX_ATTEMPTS });
}

/** Read up to 100 matching lines. */
export function readLines({ blobId }: BlobRef, asking: ReadOptions, query: LineQuery): Promise<ReadResult> {
  const given = Object.entries({ lines: LINES_PER_PAGE, ...query }).map(([name, value]) => [name, String(value)]);
  return withRetry(() => request<ReadResult>("GET", `/api/blobs/${blobId}/lines?${new URLSearchParams(given).toString()}`, asking), { maxAttempts: MAX_ATTEMPTS });
}

/** Read at most `most` bytes, from byte `from` on. */
export function readRange(blob: BlobRef, asking: ReadOptions, from: number, most: number): Promise<Uint8Array> {
  return withRetry(() => fetchRange(blob, asking, from, most), { maxAttempts: MAX_ATTEMPTS });
}

async function fetchRange(blob: BlobRef, { keys: { anonKey, shareKey }, signal }: ReadOptions, from: number, most: number): Promise<Uint8Array> {
  const opening = { ...(anonKey && { "X-Anon-Key": anonKey }), ...(shareKey && { "X-Share-Key": shareKey }) };
  const headers = { ...opening, Range: `bytes=${from}-${from + most - 1}` };
  try {
    const response = await fetch(blobPath(blob), { headers, cache: "no-store", signal: AbortSignal.any([signal, AbortSignal.timeout(READ_TIMEOUT_MS)]) });
    if (!response.ok) throw new ApiError(response.status, await problemOf(response));
    const found = new Uint8Array(await response.arrayBuffer());
    return response.status === 206 ? found : found.subarray(from, from + most);
  } catch (error) {
    if (error instanceof ApiError || signal.aborted) throw error;
    throw new NetworkError("The server could not be reached.", { cause: error });
  }
}

async function problemOf(response: Response): Promise<Partial<Problem>> {
  try {
    return (await response.json()) as Partial<Problem>;
  } catch {
    return {}; // an error page of a proxy, or an incomplete answer
  }
}
