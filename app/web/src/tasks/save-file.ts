// Saves bytes as a file of the browser.

import { withoutInvisible } from "@khala/client";
import type { BlobRef } from "@khala/client";
import { fileName } from "./blob-files.ts";

/** The object URL stays valid this long, so that a slow browser can start the download. */
const OBJECT_URL_LIFETIME_MS = 60_000;

/** Save the content of a blob as a download of the browser. */
export function saveFile(blob: BlobRef, bytes: Blob): void {
  saveBytes(fileName(blob), bytes);
}

/** Save bytes under this name, without invisible characters, as a download of the browser. */
export function saveBytes(name: string, bytes: Blob): void {
  const url = URL.createObjectURL(bytes);
  Object.assign(document.createElement("a"), { href: url, download: withoutInvisible(name) }).click();
  setTimeout(() => URL.revokeObjectURL(url), OBJECT_URL_LIFETIME_MS);
}
