// Reads blobs over REST: whole, piece by piece, or some of their lines; each asked for again where the network fails.

import type { BlobRef, Look, Problem } from "../khala/frames.ts";
import { downloadBlob, request, withRetry, ApiError, NetworkError } from "../khala/requests.ts";
import type { BlobAccessKeys, LineQuery } from "../workers/detail.messages.ts";

const READ_TIMEOUT_MS = 60_000;
const MAX_ATTEMPTS = 3;
const LINES_PER_PAGE = "100";

/** Who asks, and until when. */
export type ReadOptions = { keys: BlobAccessKeys; signal: AbortSignal };

// From the server itself (`direct`), not from where it keeps them: the page may load from nowhere else.
const blobPath = ({ blobId }: BlobRef) => `/api/blobs/${blobId}?direct=true`;

/** All bytes of a blob. Raises Refusal, Unreachable, or AbortError, as all of these. */
export function readAll(blob: BlobRef, asking: ReadOptions): Promise<Blob> {
  return withRetry(() => downloadBlob(blobPath(blob), asking), { maxAttempts: MAX_ATTEMPTS });
}

/** Some of the lines, 100 at once. */
export function readLines({ blobId }: BlobRef, asking: ReadOptions, query: LineQuery): Promise<Look> {
  const given = Object.entries({ lines: LINES_PER_PAGE, ...query }).map(([name, value]) => [name, String(value)]);
  return withRetry(() => request<Look>("GET", `/api/blobs/${blobId}/lines?${new URLSearchParams(given).toString()}`, asking), { maxAttempts: MAX_ATTEMPTS });
}

/** At most `most` bytes, from byte `from` on. */
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
    return {}; // a proxy's page, or half an answer
  }
}
