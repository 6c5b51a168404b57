// What the page and the detail worker say to each other.

import type { BlobRef, FieldError, Look } from "../khala/frames.ts";
import type { TreeRow } from "../tasks/json-tree-model.ts";

/** What opens a blob's chat, and whose session the browser has beside that: what one may read is not told to another. */
export type BlobAccessKeys = { anonKey?: string; shareKey?: string; userId?: string };

/** What a blob is shown as. */
export type BlobContent =
  /** The beginning of a text; it goes on at the byte `next`, if it does. */
  | { kind: "text"; text: string; next: number | null }
  /** JSON as a tree, with its first rows. */
  | { kind: "tree"; count: number; rows: readonly TreeRow[] }
  /** An image whose type is known to be safe to show. */
  | { kind: "image"; bytes: Blob }
  /** Something that can only be downloaded. */
  | { kind: "file" };

export type TreeRows = { count: number; rows: readonly TreeRow[] };
export type LineQuery = { mode: "head" | "tail" | "range" | "grep"; pattern?: string; ignoreCase?: boolean; after?: string; from?: number };

/** Each question with the type of its answer. A blob that was let go of meanwhile is loaded again. */
export interface DetailApi {
  /** How a blob is shown first. */
  open: { args: object; result: BlobContent };
  /** More of a text, from a byte on. */
  more: { args: { from: number }; result: { text: string; next: number | null } };
  /** Rows of a tree. */
  rows: { args: { from: number; most: number }; result: TreeRows };
  /** Open or close a row of a tree, and count anew. */
  set: { args: { path: string; isOpen: boolean; from: number; most: number }; result: TreeRows };
  /** Some of the lines. */
  lines: { args: { query: LineQuery }; result: Look };
  /** All of it. */
  bytes: { args: object; result: Blob };
}

export type DetailMethod = keyof DetailApi;
export type DetailArgs<K extends DetailMethod> = DetailApi[K]["args"];
export type DetailResult<K extends DetailMethod> = DetailApi[K]["result"];

/** A question about a blob; `id` is of the question. */
export type DetailRequest = { [K in DetailMethod]: { type: "request"; id: number; kind: K; blob: BlobRef; keys: BlobAccessKeys } & DetailArgs<K> }[DetailMethod];

export type ToDetail =
  | DetailRequest
  /** Nobody waits for the answer to this question any more. */
  | { type: "abort"; id: number };

/** Why there is no answer: the server's "no", or, without a status, that it could not be reached. */
export type RequestFailure = { message: string; status?: number; code?: string; errors?: readonly FieldError[]; retryAfter?: number | null };

export type FromDetail = { id: number; result: DetailResult<DetailMethod> } | { id: number; error: RequestFailure };
