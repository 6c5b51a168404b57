// The service of the detail worker: loads and parses blobs, and caches the most recently used.

import { ApiError } from "@khala/client";
import type { BlobRef } from "@khala/client";
import type { DetailResult, BlobContent, RequestFailure, ToDetail, DetailMethod, DetailRequest, FromDetail } from "../workers/detail.messages.ts";
import { isText } from "./blob-files.ts";
import { LruCache } from "./lru-cache.ts";
import { type ReadOptions, readLines, readRange, readAll } from "./blob-reader.ts";
import { hasRows, JsonTreeModel } from "./json-tree-model.ts";

export const MAX_CACHED_DETAILS = 20;
const MAX_CACHE_BYTES = 64 * 1024 * 1024;
/** Parsed JSON takes several times the memory of its text. */
const PARSED_SIZE_FACTOR = 6;
export const MAX_JSON_BYTES = 5 * 1024 * 1024;
const MAX_IMAGE_BYTES = 25 * 1024 * 1024;
export const TEXT_CHUNK_BYTES = 64 * 1024;
const INITIAL_ROWS = 100;
const MAX_ROWS_PER_REQUEST = 1_000;
const IMAGE_TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/** The cached form of a blob. */
type Detail = { kind: "text"; text: string; next: number | null } | { kind: "tree"; tree: JsonTreeModel } | { kind: "image"; bytes: Blob } | { kind: "file" };
type Load = { detail: Promise<Detail>; ids: Set<number>; abort: AbortController };

export class DetailService {
  readonly #post: (message: FromDetail) => void;
  readonly #cache = new LruCache<string, Detail>(MAX_CACHED_DETAILS, MAX_CACHE_BYTES);
  readonly #loads = new Map<string, Load>();
  readonly #requests = new Map<number, AbortController>();

  constructor(post: (message: FromDetail) => void) {
    this.#post = post;
  }

  receive(message: ToDetail): void {
    if (message.type === "request") void this.#answer(message);
    else this.#requests.get(message.id)?.abort();
  }

  async #answer(request: DetailRequest): Promise<void> {
    const { id } = request;
    const abort = new AbortController();
    this.#requests.set(id, abort);
    try {
      const result = await this.#resultOf(request, abort.signal);
      if (!abort.signal.aborted) this.#post({ id, result });
    } catch (error) {
      if (!abort.signal.aborted) this.#post({ id, error: failureOf(error) });
    } finally {
      this.#requests.delete(id);
    }
  }

  async #resultOf(request: DetailRequest, signal: AbortSignal): Promise<DetailResult<DetailMethod>> {
    const { blob } = request;
    const asking = { keys: request.keys, signal };
    switch (request.kind) {
      case "open":
        return contentOf(await this.#loadDetail(request, signal));
      case "more":
        return readText(blob, asking, request.from);
      case "rows":
        return this.#rows(request, signal);
      case "set":
        return this.#rows(request, signal, (tree) => tree.setOpen(request.path, request.isOpen));
      case "lines":
        return readLines(blob, asking, request.query);
      case "bytes":
        return readAll(blob, asking);
    }
  }

  async #rows(request: DetailRequest & { from: number; most: number }, signal: AbortSignal, change?: (tree: JsonTreeModel) => void): Promise<DetailResult<"rows">> {
    const detail = await this.#loadDetail(request, signal);
    if (detail.kind !== "tree") return { count: 0, rows: [] };
    change?.(detail.tree);
    return { count: detail.tree.count, rows: detail.tree.rows(request.from, Math.min(request.most, MAX_ROWS_PER_REQUEST)) };
  }

  /** The detail of a blob from the cache, from a pending load, or from a new load. The load is cancelled when no request waits for it. */
  async #loadDetail({ id, blob, keys }: DetailRequest, signal: AbortSignal): Promise<Detail> {
    const key = JSON.stringify([blob.blobId, keys.anonKey, keys.shareKey, keys.userId]);
    const kept = this.#cache.get(key);
    if (kept) return kept;
    const load = this.#loads.get(key) ?? this.#startLoad(key, blob, keys);
    load.ids.add(id);
    const leave = () => {
      load.ids.delete(id);
      if (load.ids.size > 0) return;
      load.abort.abort();
      if (this.#loads.get(key) === load) this.#loads.delete(key);
    };
    signal.addEventListener("abort", leave);
    try {
      return await load.detail;
    } finally {
      signal.removeEventListener("abort", leave);
    }
  }

  #startLoad(key: string, blob: BlobRef, keys: ReadOptions["keys"]): Load {
    const abort = new AbortController();
    const load: Load = { detail: readDetail(blob, { keys, signal: abort.signal }), ids: new Set(), abort };
    this.#loads.set(key, load);
    const end = () => this.#loads.get(key) === load && this.#loads.delete(key);
    const keep = (detail: Detail) => {
      if (end()) this.#cache.set(key, detail, weightOf(detail, blob));
    };
    void load.detail.then(keep, end); // the requests that wait for it report the error
    return load;
  }
}

async function readDetail(blob: BlobRef, asking: ReadOptions): Promise<Detail> {
  const type = blob.mediaType.split(";")[0]?.trim().toLowerCase() ?? "";
  // The bytes get the media type that was checked, whatever the server sends.
  if (IMAGE_TYPES.includes(type) && blob.size <= MAX_IMAGE_BYTES) return { kind: "image", bytes: new Blob([await readAll(blob, asking)], { type }) };
  if (!isText(blob)) return { kind: "file" };
  const value = type.includes("json") && blob.size <= MAX_JSON_BYTES ? await readJson(blob, asking) : undefined;
  return hasRows(value) ? { kind: "tree", tree: new JsonTreeModel(value) } : { kind: "text", ...(await readText(blob, asking, 0)) };
}

async function readJson(blob: BlobRef, asking: ReadOptions): Promise<unknown> {
  const text = await (await readAll(blob, asking)).text();
  try {
    return JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return undefined; // it is shown as text
    throw error;
  }
}

async function readText(blob: BlobRef, asking: ReadOptions, from: number): Promise<{ text: string; next: number | null }> {
  if (from >= blob.size) return { text: "", next: null };
  const bytes = await readRange(blob, asking, from, TEXT_CHUNK_BYTES);
  const isLast = from + bytes.length >= blob.size || bytes.length === 0;
  const length = isLast ? bytes.length : completeUtf8Length(bytes);
  return { text: new TextDecoder().decode(bytes.subarray(0, length)), next: isLast ? null : from + length };
}

/** The number of bytes up to the last complete UTF-8 character. The rest belongs to the next chunk. */
export function completeUtf8Length(bytes: Uint8Array): number {
  for (let back = 1; back <= Math.min(4, bytes.length); back++) {
    const byte = bytes[bytes.length - back] ?? 0;
    if ((byte & 0xc0) === 0x80) continue;
    const needs = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return back < needs && back < bytes.length ? bytes.length - back : bytes.length;
  }
  return bytes.length;
}

function contentOf(detail: Detail): BlobContent {
  return detail.kind === "tree" ? { kind: "tree", count: detail.tree.count, rows: detail.tree.rows(0, INITIAL_ROWS) } : detail;
}

function weightOf(detail: Detail, { size }: BlobRef): number {
  if (detail.kind === "tree") return size * PARSED_SIZE_FACTOR;
  if (detail.kind === "text") return detail.text.length * 2;
  return detail.kind === "image" ? size : 1;
}

function failureOf(error: unknown): RequestFailure {
  if (!(error instanceof ApiError)) return { message: error instanceof Error ? error.message : String(error) };
  const { message, status, code, errors, retryAfter } = error;
  return { message, status, code, errors, retryAfter };
}
