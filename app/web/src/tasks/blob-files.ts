// Facts about a blob that need no download.

import { withoutInvisible } from "@khala/client";
import type { BlobRef } from "@khala/client";

/** Whether a blob can be shown as lines of text. */
export function isText({ mediaType, preview }: BlobRef): boolean {
  return Boolean(preview) || /^text\/|json/.test(mediaType);
}

/** The file name of a blob, without invisible characters. */
export function fileName({ blobId, name, mediaType }: BlobRef): string {
  return withoutInvisible(name ?? "") || `${blobId}${mediaType.includes("json") ? ".json" : mediaType.startsWith("text/") ? ".txt" : ""}`;
}
