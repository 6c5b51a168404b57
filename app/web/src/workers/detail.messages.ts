// What the page and the detail worker say to each other.

import type { BlobRef, FieldError, Look } from "../khala/frames.ts";
import type { Row } from "../tasks/tree.ts";

/** What opens a blob's chat, and whose session the browser has beside that: what one may read is not told to another. */
export type Keys = { anonKey?: string; shareKey?: string; userId?: string };

/** What a blob is shown as. */
export type Content =
  /** The beginning of a text; it goes on at the byte `next`, if it does. */
  | { kind: "text"; text: string; next: number | null }
  /** JSON as a tree, with its first rows. */
  | { kind: "tree"; count: number; rows: readonly Row[] }
  /** An image whose type is known to be safe to show. */
  | { kind: "image"; bytes: Blob }
  /** Something that can only be downloaded. */
  | { kind: "file" };

export type Rows = { count: number; rows: readonly Row[] };
export type Query = { mode: "head" | "tail" | "range" | "grep"; pattern?: string; ignoreCase?: boolean; after?: string; from?: number };

/** Each question with the type of its answer. A blob that was let go of meanwhile is loaded again. */
export interface Questions {
  /** How a blob is shown first. */
  open: { ask: object; answer: Content };
  /** More of a text, from a byte on. */
  more: { ask: { from: number }; answer: { text: string; next: number | null } };
  /** Rows of a tree. */
  rows: { ask: { from: number; most: number }; answer: Rows };
  /** Open or close a row of a tree, and count anew. */
  set: { ask: { path: string; isOpen: boolean; from: number; most: number }; answer: Rows };
  /** Some of the lines. */
  lines: { ask: { query: Query }; answer: Look };
  /** All of it. */
  bytes: { ask: object; answer: Blob };
}

export type Kind = keyof Questions;
export type Asked<K extends Kind> = Questions[K]["ask"];
export type Answer<K extends Kind> = Questions[K]["answer"];

/** A question about a blob; `id` is of the question. */
export type Question = { [K in Kind]: { type: "ask"; id: number; kind: K; blob: BlobRef; keys: Keys } & Asked<K> }[Kind];

export type Heard =
  | Question
  /** Nobody waits for the answer to this question any more. */
  | { type: "abort"; id: number };

/** Why there is no answer: the server's "no", or, without a status, that it could not be reached. */
export type Failure = { message: string; status?: number; code?: string; errors?: readonly FieldError[]; retryAfter?: number | null };

export type Told = { id: number; answer: Answer<Kind> } | { id: number; failure: Failure };
