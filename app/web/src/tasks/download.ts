// Saves bytes that the page has as a file.

import type { BlobRef } from "../khala/frames.ts";
import { fileName } from "./blobs.ts";

/** So long a browser may take to begin with a download. */
const KEPT_MS = 60_000;

export function download(blob: BlobRef, bytes: Blob): void {
  const url = URL.createObjectURL(bytes);
  Object.assign(document.createElement("a"), { href: url, download: fileName(blob) }).click();
  setTimeout(() => URL.revokeObjectURL(url), KEPT_MS);
}
