// Sources of the rows of a JSON tree: a local value, or a blob in the detail worker.

import type { BlobRef } from "@khala/client";
import { detailClient } from "./detail-client.ts";
import type { BlobAccessKeys, TreeRows } from "./detail-client.ts";
import { JsonTreeModel } from "./json-tree-model.ts";

export interface RowSource {
  /** Up to `most` rows from index `from` on, and the number of all rows. */
  rows(from: number, most: number): TreeRows | Promise<TreeRows>;
  /** The same, after opening or closing the row at `path`. */
  set(path: string, isOpen: boolean, from: number, most: number): TreeRows | Promise<TreeRows>;
}

/** The rows of a local array or object that is not empty. */
export function localRows(value: object): RowSource {
  const tree = new JsonTreeModel(value);
  const rows = (from: number, most: number) => ({ count: tree.count, rows: tree.rows(from, most) });
  return {
    rows,
    set: (path, isOpen, from, most) => {
      tree.setOpen(path, isOpen);
      return rows(from, most);
    },
  };
}

/** The rows of a blob that was opened as a tree. */
export function blobRows(blob: BlobRef, keys: BlobAccessKeys, signal: AbortSignal): RowSource {
  return {
    rows: (from, most) => detailClient.request("rows", blob, keys, { from, most }, signal),
    set: (path, isOpen, from, most) => detailClient.request("set", blob, keys, { path, isOpen, from, most }, signal),
  };
}
