// The messages between the page and the detail worker.

import type { BlobRef, FieldError, ReadResult } from "@khala/client";
import type { TreeRow } from "../tasks/json-tree-model.ts";

/** Access keys to a blob's thread, and the signed-in account. The cache is separate for each combination. */
export type BlobAccessKeys = { anonKey?: string; shareKey?: string; userId?: string };

/** How a blob is shown. */
export type BlobContent =
  /** The beginning of a text. `next` is the byte offset of the rest, null at the end. */
  | { kind: "text"; text: string; next: number | null }
  /** JSON as a tree, with its first rows. */
  | { kind: "tree"; count: number; rows: readonly TreeRow[] }
  /** An image of a type that is safe to show. */
  | { kind: "image"; bytes: Blob }
  /** Content that can only be downloaded. */
  | { kind: "file" };

export type TreeRows = { count: number; rows: readonly TreeRow[] };
export type LineQuery = { mode: "head" | "tail" | "range" | "grep"; pattern?: string; ignoreCase?: boolean; after?: string; from?: number };

/** The arguments and the result of each request. A blob that is not cached any more is loaded again. */
export interface DetailApi {
  /** The first view of a blob. */
  open: { args: object; result: BlobContent };
  /** More of a text, from a byte offset on. */
  more: { args: { from: number }; result: { text: string; next: number | null } };
  /** Rows of a tree. */
  rows: { args: { from: number; most: number }; result: TreeRows };
  /** Open or close a row of a tree; the rows are numbered anew. */
  set: { args: { path: string; isOpen: boolean; from: number; most: number }; result: TreeRows };
  /** Matching lines. */
  lines: { args: { query: LineQuery }; result: ReadResult };
  /** The whole content. */
  bytes: { args: object; result: Blob };
}

export type DetailMethod = keyof DetailApi;
export type DetailArgs<K extends DetailMethod> = DetailApi[K]["args"];
export type DetailResult<K extends DetailMethod> = DetailApi[K]["result"];

/** A request about a blob. `id` identifies the request. */
export type DetailRequest = { [K in DetailMethod]: { type: "request"; id: number; kind: K; blob: BlobRef; keys: BlobAccessKeys } & DetailArgs<K> }[DetailMethod];

export type ToDetail =
  | DetailRequest
  /** Cancels the request with this id. */
  | { type: "abort"; id: number };

/** An error of a request: the server's error response, or without `status` a network error. */
export type RequestFailure = { message: string; status?: number; code?: string; errors?: readonly FieldError[]; retryAfter?: number | null };

export type FromDetail = { id: number; result: DetailResult<DetailMethod> } | { id: number; error: RequestFailure };
