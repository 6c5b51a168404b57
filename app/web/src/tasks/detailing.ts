// What the detail worker does: answers questions about blobs, and keeps the last that it was asked for.

import type { BlobRef } from "../khala/frames.ts";
import { ApiError } from "../khala/requests.ts";
import type { DetailResult, BlobContent, RequestFailure, ToDetail, DetailMethod, DetailRequest, FromDetail } from "../workers/detail.messages.ts";
import { isText } from "./blobs.ts";
import { Lru } from "./lru.ts";
import { type Asking, lines, piece, whole } from "./reading.ts";
import { hasRows, Tree } from "./tree.ts";

export const MOST_DETAILS = 20;
const HEAVIEST = 64 * 1024 * 1024;
/** JSON that was read takes several times the room of its text. */
const PARSED_WEIGHT = 6;
export const LARGEST_JSON = 5 * 1024 * 1024;
const LARGEST_IMAGE = 25 * 1024 * 1024;
export const PIECE = 64 * 1024;
const FIRST_ROWS = 100;
const MOST_ROWS_AT_ONCE = 1_000;
const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/** What is kept of a blob. */
type Detail = { kind: "text"; text: string; next: number | null } | { kind: "tree"; tree: Tree } | { kind: "image"; bytes: Blob } | { kind: "file" };
type Load = { detail: Promise<Detail>; ids: Set<number>; abort: AbortController };

export class Detailing {
  readonly #tell: (told: FromDetail) => void;
  readonly #kept = new Lru<string, Detail>(MOST_DETAILS, HEAVIEST);
  readonly #loads = new Map<string, Load>();
  readonly #waiting = new Map<number, AbortController>();

  constructor(tell: (told: FromDetail) => void) {
    this.#tell = tell;
  }

  hear(heard: ToDetail): void {
    if (heard.type === "ask") void this.#answer(heard);
    else this.#waiting.get(heard.id)?.abort();
  }

  async #answer(question: DetailRequest): Promise<void> {
    const { id } = question;
    const abort = new AbortController();
    this.#waiting.set(id, abort);
    try {
      const answer = await this.#found(question, abort.signal);
      if (!abort.signal.aborted) this.#tell({ id, answer });
    } catch (error) {
      if (!abort.signal.aborted) this.#tell({ id, failure: failureOf(error) });
    } finally {
      this.#waiting.delete(id);
    }
  }

  async #found(question: DetailRequest, signal: AbortSignal): Promise<DetailResult<DetailMethod>> {
    const { blob } = question;
    const asking = { keys: question.keys, signal };
    switch (question.kind) {
      case "open":
        return contentOf(await this.#detail(question, signal));
      case "more":
        return textFrom(blob, asking, question.from);
      case "rows":
        return this.#rows(question, signal);
      case "set":
        return this.#rows(question, signal, (tree) => tree.set(question.path, question.isOpen));
      case "lines":
        return lines(blob, asking, question.query);
      case "bytes":
        return whole(blob, asking);
    }
  }

  async #rows(question: DetailRequest & { from: number; most: number }, signal: AbortSignal, change?: (tree: Tree) => void): Promise<DetailResult<"rows">> {
    const detail = await this.#detail(question, signal);
    if (detail.kind !== "tree") return { count: 0, rows: [] };
    change?.(detail.tree);
    return { count: detail.tree.count, rows: detail.tree.rows(question.from, Math.min(question.most, MOST_ROWS_AT_ONCE)) };
  }

  /** What is kept of a blob, or is being loaded already, or is loaded now. It is called off when nobody waits for it any more. */
  async #detail({ id, blob, keys }: DetailRequest, signal: AbortSignal): Promise<Detail> {
    const key = JSON.stringify([blob.blobId, keys.anonKey, keys.shareKey, keys.userId]);
    const kept = this.#kept.get(key);
    if (kept) return kept;
    const load = this.#loads.get(key) ?? this.#load(key, blob, keys);
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

  #load(key: string, blob: BlobRef, keys: Asking["keys"]): Load {
    const abort = new AbortController();
    const load: Load = { detail: read(blob, { keys, signal: abort.signal }), ids: new Set(), abort };
    this.#loads.set(key, load);
    const end = () => this.#loads.get(key) === load && this.#loads.delete(key);
    const keep = (detail: Detail) => {
      if (end()) this.#kept.set(key, detail, weightOf(detail, blob));
    };
    void load.detail.then(keep, end); // why it failed is told to whoever asked
    return load;
  }
}

async function read(blob: BlobRef, asking: Asking): Promise<Detail> {
  const type = blob.mediaType.split(";")[0]?.trim().toLowerCase() ?? "";
  // The bytes get the type that was checked, whatever the server calls them.
  if (IMAGES.includes(type) && blob.size <= LARGEST_IMAGE) return { kind: "image", bytes: new Blob([await whole(blob, asking)], { type }) };
  if (!isText(blob)) return { kind: "file" };
  const value = type.includes("json") && blob.size <= LARGEST_JSON ? await json(blob, asking) : undefined;
  return hasRows(value) ? { kind: "tree", tree: new Tree(value) } : { kind: "text", ...(await textFrom(blob, asking, 0)) };
}

async function json(blob: BlobRef, asking: Asking): Promise<unknown> {
  const text = await (await whole(blob, asking)).text();
  try {
    return JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return undefined; // it is shown as the text that it is
    throw error;
  }
}

async function textFrom(blob: BlobRef, asking: Asking, from: number): Promise<{ text: string; next: number | null }> {
  if (from >= blob.size) return { text: "", next: null };
  const bytes = await piece(blob, asking, from, PIECE);
  const isLast = from + bytes.length >= blob.size || bytes.length === 0;
  const length = isLast ? bytes.length : complete(bytes);
  return { text: new TextDecoder().decode(bytes.subarray(0, length)), next: isLast ? null : from + length };
}

/** How many of the bytes are whole letters of UTF-8: one that is cut off at the end is left for the next piece. */
export function complete(bytes: Uint8Array): number {
  for (let back = 1; back <= Math.min(4, bytes.length); back++) {
    const byte = bytes[bytes.length - back] ?? 0;
    if ((byte & 0xc0) === 0x80) continue;
    const needs = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return back < needs && back < bytes.length ? bytes.length - back : bytes.length;
  }
  return bytes.length;
}

function contentOf(detail: Detail): BlobContent {
  return detail.kind === "tree" ? { kind: "tree", count: detail.tree.count, rows: detail.tree.rows(0, FIRST_ROWS) } : detail;
}

function weightOf(detail: Detail, { size }: BlobRef): number {
  if (detail.kind === "tree") return size * PARSED_WEIGHT;
  if (detail.kind === "text") return detail.text.length * 2;
  return detail.kind === "image" ? size : 1;
}

function failureOf(error: unknown): RequestFailure {
  if (!(error instanceof ApiError)) return { message: error instanceof Error ? error.message : String(error) };
  const { message, status, code, errors, retryAfter } = error;
  return { message, status, code, errors, retryAfter };
}
